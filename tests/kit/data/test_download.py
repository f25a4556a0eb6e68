"""Downloads and archives are whole or absent, and nothing is written outside of the folder."""

import hashlib
import io
import os
import tarfile
import threading
import zipfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from experiment_kit.data import download
from experiment_kit.data.download import HubFiles, extract_archive, fetch_file, fetch_hub_files
from experiment_kit.errors import UserError

DATA = bytes(range(256)) * 4001
SHA = hashlib.sha256(DATA).hexdigest()
COMMIT = "c0ffee" * 6 + "beef"
TABLES = HubFiles("owner/name", ("cola/*.parquet",), COMMIT)


class Server(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.data, self.status = DATA, 200
        self.requests = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/raw.zip"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests += 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.data)))
        self.end_headers()
        self.wfile.write(self.server.data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def fetch_failing(*args):
    with pytest.raises(UserError) as error:
        fetch_file(*args)
    return str(error.value)


def test_a_known_hash_needs_the_network_once(server, tmp_path):
    path = tmp_path / "new" / "raw.zip"
    for _ in range(2):
        assert fetch_file(server.url, path, SHA) == path
    assert path.read_bytes() == DATA
    assert server.requests == 1
    assert sorted(os.listdir(path.parent)) == ["raw.zip", "raw.zip.lock"]


def test_a_wrong_file_is_replaced_by_the_right_one_alone(server, tmp_path):
    path = tmp_path / "raw.zip"
    path.write_bytes(b"half of it")
    server.data = b"another"
    assert SHA in fetch_failing(server.url, path, SHA)
    assert path.read_bytes() == b"half of it"
    server.data = DATA
    assert fetch_file(server.url, path, SHA).read_bytes() == DATA
    path.write_bytes(b"mine")
    assert fetch_file(server.url, path).read_bytes() == b"mine"  # its hash is not known


def test_no_network_and_a_missing_page_are_a_sentence(server, tmp_path):
    path = tmp_path / "raw.zip"
    server.status = 404
    assert "404" in fetch_failing(server.url, path, SHA)
    with Server() as gone:
        url = gone.url
    message = f"from {url}: try again, or put it at {path} by hand: "
    assert fetch_failing(url, path, SHA).startswith(f"cannot download raw.zip {message}")


def make_archive(path: Path, files: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, f"w:{path.suffix.removeprefix('.').removeprefix('tar')}") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


FILES = {"x/a": b"alpha", "x/deep/b": bytes(9999), "xy": b"", "readme": b"r"}


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.xz"])
def test_everything_or_a_folder_comes_out(name, tmp_path):
    path = make_archive(tmp_path / name, FILES)
    out = extract_archive(path, tmp_path / "out")
    found = {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert found == FILES
    assert sorted(os.listdir(extract_archive(path, tmp_path / "in", "x"))) == ["a", "deep"]
    assert extract_archive(tmp_path / "gone", out) == out  # what is there is kept


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz"])
@pytest.mark.parametrize("member", ["../out-of-it", "x/../../out-of-it", "/tmp/out-of-it"])
def test_no_member_is_written_outside_of_the_folder(name, member, tmp_path):
    path = make_archive(tmp_path / name, {"good": b"", member: b"bad"})
    with suppress(UserError):
        extract_archive(path, tmp_path / "out")
    assert {*os.listdir(tmp_path)} <= {name, "out", "out.lock"}
    assert not Path("/tmp/out-of-it").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_no_link_of_a_tar_leads_out_of_the_folder(kind, tmp_path):
    info = tarfile.TarInfo("link")
    info.type, info.linkname = kind, str(tmp_path / "victim")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(info)
        tar.addfile(tarfile.TarInfo("link/file"))
    with pytest.raises(UserError, match="cannot be unpacked"):
        extract_archive(tmp_path / "a.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.xz"])
def test_a_damaged_or_empty_archive_leaves_no_folder(name, tmp_path):
    path = make_archive(tmp_path / name, {"a": os.urandom(9999)})
    for body in (path.read_bytes()[:-200], b"<html>"):
        path.write_bytes(body)
        with pytest.raises(UserError, match=r"a\.(zip|tar).* cannot be unpacked"):
            extract_archive(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="has no"):
        extract_archive(make_archive(path, {}), tmp_path / "out")
    with pytest.raises(UserError, match="has no folder y"):
        extract_archive(make_archive(path, FILES), tmp_path / "out", "y")
    assert sorted(os.listdir(tmp_path)) == sorted([name, "out.lock"])


def test_a_killed_extraction_is_no_data_set(server, tmp_path):
    server.data = make_archive(tmp_path / "made.zip", FILES).read_bytes()
    (tmp_path / ".data.part").mkdir()
    (tmp_path / ".data.part" / "half").touch()
    files = [download.Download(server.url, "data", inside="x")]
    for _ in range(2):
        assert download.download_dataset(files, tmp_path) == [tmp_path / "data"]
    assert sorted(os.listdir(tmp_path / "data")) == ["a", "deep"]
    assert server.requests == 1


@pytest.fixture
def snapshot(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    repo = tmp_path / "datasets--owner--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text(COMMIT)
    folder = repo / "snapshots" / COMMIT / "cola"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("revision", [COMMIT, "main"])
def test_cached_files_of_the_hub_need_no_network(snapshot: Path, revision: str) -> None:
    (snapshot / "train-00001-of-00002.parquet").touch()
    assert fetch_hub_files(HubFiles("owner/name", TABLES.patterns, revision)) == snapshot.parent


def test_what_the_hub_does_not_have_is_a_sentence(snapshot: Path) -> None:
    with pytest.raises(UserError, match=r"^owner/name at c0ffee.* has no cola/\*.parquet$"):
        fetch_hub_files(TABLES)
    with pytest.raises(UserError, match=r"owner/other is not cached, and the hub does not give it"):
        fetch_hub_files(HubFiles("owner/other", ("*",)))
