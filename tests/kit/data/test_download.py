"""Downloads from a server on this machine that breaks off, ignores ranges, changes, or is gone."""

import hashlib
import io
import os
import re
import subprocess
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
from experiment_kit.data.download import Download, download_dataset, fetch_file
from experiment_kit.errors import UserError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DATA = bytes(range(256)) * 4001
SHA = hashlib.sha256(DATA).hexdigest()
FIXTURE = HealthCheck.function_scoped_fixture


class Server(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.data, self.tag = DATA, '"one"'
        self.ranges = self.places = True  # honours Range, says Content-Range
        self.cuts = []  # after how many bytes the next answers break off
        self.seen = []  # the Range of each request, and its status
        self.status, self.headers = None, {}  # of each answer, in place of what is right

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/raw.zip"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        same = self.headers.get("If-Range", self.server.tag) == self.server.tag
        start = int(re.findall(r"\d+", wanted)[0]) if wanted and same and self.server.ranges else 0
        size = len(self.server.data)
        status = 404 if "gone" in self.path else 416 if 0 < size <= start else 206 if start else 200
        status = self.server.status or status
        self.server.seen.append((wanted, status))
        body = self.server.data[start:] if status < 400 else b""
        self.send_response(status)
        headers = {"Content-Length": str(len(body))} | self.server.headers
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        if self.server.tag:
            self.send_header("ETag", self.server.tag)
        if status in (206, 416) and self.server.places:
            place = f"{start}-{size - 1}" if status == 206 else "*"
            self.send_header("Content-Range", f"bytes {place}/{size}")
        self.end_headers()
        self.wfile.write(body[: self.server.cuts.pop(0)] if self.server.cuts else body)

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
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_known_hash_needs_the_network_once(server, tmp_path):
    path = tmp_path / "new" / "raw.zip"
    assert fetch_file(server.url, path, SHA) == path
    assert path.read_bytes() == DATA
    assert fetch_file(server.url, str(path), SHA.upper()) == path
    assert server.seen == [(None, 200)]
    assert sorted(os.listdir(path.parent)) == ["raw.zip", "raw.zip.lock"]


def test_an_unknown_hash_is_recorded_and_required_from_then_on(server, tmp_path, capsys):
    path = fetch_file(server.url, tmp_path / "raw.zip")
    record = tmp_path / "raw.zip.sha256"
    assert f"{record} remembers sha256 {SHA}" in capsys.readouterr().err
    assert subprocess.run(["sha256sum", "-c", record], cwd=tmp_path, check=False).returncode == 0
    fetch_file(server.url, path)
    assert len(server.seen) == 1
    path.write_bytes(b"changed")
    sentence = fetch_failing(server.url, path)
    found = hashlib.sha256(b"changed").hexdigest()
    assert sentence == f"{path} has sha256 {found}, not {SHA}: delete {record} to accept it"
    assert path.read_bytes() == b"changed"
    record.unlink()
    assert fetch_file(server.url, path).read_bytes() == b"changed"


def test_another_file_on_the_server_is_refused_until_its_hash_is_accepted(server, tmp_path):
    path = fetch_file(server.url, tmp_path / "raw.zip")
    path.unlink()
    server.data = b"new"
    new = hashlib.sha256(b"new").hexdigest()
    sentence = fetch_failing(server.url, path)
    assert all(part in sentence for part in (new, SHA, f"delete {path}.sha256 to accept it"))
    assert not path.exists()
    assert "pass its hash as sha256 to accept it" in fetch_failing(server.url, path, SHA)
    assert not path.exists()
    assert "was kept as raw.zip.bad" in sentence
    assert (tmp_path / "raw.zip.bad").read_bytes() == b"new"
    assert fetch_file(server.url, path, new).read_bytes() == b"new"


def test_a_wrong_file_is_set_aside_and_downloaded_again_by_the_next_call(server, tmp_path):
    path = tmp_path / "raw.zip"
    path.write_bytes(b"half of it")
    sentence = fetch_failing(server.url, path, SHA)
    assert "was moved to raw.zip.bad" in sentence
    assert SHA in sentence
    assert (tmp_path / "raw.zip.bad").read_bytes() == b"half of it"
    assert fetch_file(server.url, path, SHA).read_bytes() == DATA


def test_an_answer_that_breaks_off_is_continued(server, tmp_path):
    server.cuts = [300_000, 200_000]
    assert fetch_file(server.url, tmp_path / "raw.zip").read_bytes() == DATA
    assert server.seen == [(None, 200), ("bytes=300000-", 206), ("bytes=500000-", 206)]
    assert sorted(os.listdir(tmp_path)) == ["raw.zip", "raw.zip.lock", "raw.zip.sha256"]


@pytest.mark.parametrize("sha256", [SHA, None])
def test_a_later_call_continues_the_part_of_an_earlier_one(server, tmp_path, sha256):
    server.cuts = [300_000, 0]
    assert "the connection broke off" in fetch_failing(server.url, tmp_path / "raw.zip", sha256)
    assert not (tmp_path / "raw.zip").exists()
    assert fetch_file(server.url, tmp_path / "raw.zip", sha256).read_bytes() == DATA
    assert server.seen[-1] == ("bytes=300000-", 206)


def test_a_part_of_an_older_version_is_not_continued(server, tmp_path):
    server.cuts = [300_000, 0]
    fetch_failing(server.url, tmp_path / "raw.zip")
    server.data, server.tag = DATA[::-1], '"two"'
    assert fetch_file(server.url, tmp_path / "raw.zip").read_bytes() == DATA[::-1]
    assert server.seen[-1] == ("bytes=300000-", 200)


@pytest.mark.parametrize("tag", ['"one"', ""])
def test_a_server_that_ignores_ranges_sends_it_all_again(server, tmp_path, tag):
    server.ranges, server.tag = False, tag
    server.cuts = [300_000]
    assert fetch_file(server.url, tmp_path / "raw.zip", SHA).read_bytes() == DATA
    assert server.seen[1] == ("bytes=300000-", 200)


def test_without_hash_and_version_a_part_cannot_be_trusted(server, tmp_path):
    server.tag = ""
    (tmp_path / "raw.zip.part").write_bytes(b"of something else")
    assert fetch_file(server.url, tmp_path / "raw.zip").read_bytes() == DATA
    assert server.seen == [(None, 200)]


@pytest.mark.parametrize(
    ("part", "says_place", "statuses"),
    [(DATA, True, [416]), (DATA + b"too much", True, [416, 200]), (DATA, False, [416, 200])],
    ids=["whole", "too long", "refused without a reason"],
)
def test_a_part_without_a_rest_is_kept_if_whole(server, tmp_path, part, says_place, statuses):
    server.places = says_place
    (tmp_path / "raw.zip.part").write_bytes(part)
    assert fetch_file(server.url, tmp_path / "raw.zip", SHA).read_bytes() == DATA
    assert [status for _, status in server.seen] == statuses


@given(cuts=st.lists(st.integers(1, 4000), max_size=4), ranges=st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=[FIXTURE])
def test_whatever_breaks_off_the_file_is_whole_or_absent(server, tmp_path_factory, cuts, ranges):
    path = tmp_path_factory.mktemp("any") / "raw.zip"
    server.data, server.cuts, server.ranges = DATA[:5000], list(cuts), ranges
    try:
        assert fetch_file(server.url, path).read_bytes() == server.data
    except UserError:
        assert not ranges  # with ranges each answer brings it nearer
        assert not path.exists()


def test_calls_side_by_side_download_once(server, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fetch_file(server.url, tmp_path / "raw.zip"), range(4)))
    assert server.seen == [(None, 200)]


def test_no_network_is_one_sentence(tmp_path):
    with Server() as server:
        url = server.url
    path = tmp_path / "raw.zip"
    message = f"from {url} (no connection): try again, or put it at {path} by hand"
    assert fetch_failing(url, path, SHA) == f"cannot download raw.zip {message}"
    path.write_bytes(DATA)
    assert fetch_file(url, path, SHA) == path


def test_a_missing_page_is_reported_with_its_status(server, tmp_path):
    url = server.url.replace("raw", "gone")
    assert f"from {url} (404 Not Found)" in fetch_failing(url, tmp_path / "gone.zip")


def test_a_file_that_records_no_hash_is_an_error(tmp_path):
    (tmp_path / "y.sha256").write_text("")
    assert "y.sha256 does not begin with a sha256" in fetch_failing("http://x/y", tmp_path / "y")


@pytest.mark.parametrize(("url", "sha256", "sentence"), [
    ("ftp://x/y", None, "url must begin with http:// or https://, not 'ftp://x/y'"),
    ("http://x/y", "md5:12", "sha256 must be 64 hexadecimal digits, not 'md5:12'"),
])  # fmt: skip
def test_a_wrong_argument_is_an_error(tmp_path, url, sha256, sentence):
    with pytest.raises(ValueError, match=sentence):
        fetch_file(url, tmp_path / "y", sha256)


def test_a_bar_is_drawn_on_a_terminal_only(server, tmp_path, capsys, monkeypatch):
    fetch_file(server.url, tmp_path / "quiet.zip", SHA)
    assert "1.0/1.0 MB" not in capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich's word for a terminal
    fetch_file(server.url, tmp_path / "drawn.zip", SHA)
    assert "1.0/1.0 MB" in capsys.readouterr().err


def zip_files(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            # an entry of a fixed date: the bytes are in names of tests, which must be reproducible
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def test_an_archive_is_read_to_its_end_before_its_hash_is_recorded(server, tmp_path):
    server.data = zip_files({"x/a": b"alpha", "readme": b""})
    files = [Download(server.url, "data", inside="x")]
    assert download_dataset(files, tmp_path) == [tmp_path / "data"]
    assert (tmp_path / "data" / "a").read_bytes() == b"alpha"
    assert download_dataset(files, tmp_path) == [tmp_path / "data"]
    assert len(server.seen) == 1


GOOD = zip_files({"a": bytes(99), "b": b"beta"})
PAGE = b"<!DOCTYPE html><html><form>login</form></html>"


@pytest.mark.parametrize("inside", [None, ""])
@pytest.mark.parametrize(("body", "status", "headers"), [
    (PAGE, 200, {}),
    (b"\xef\xbb\xbf\n <HTML>" + PAGE, 200, {"Content-Type": "text/html"}),
    (b"", 200, {}),
    (b" \n", 200, {}),
    (b"", 204, {}),
    (b"", 304, {}),
    (b"", 302, {}),
    (GOOD[:-40], 200, {"Content-Length": None}),
    (GOOD[:90], 200, {"Content-Length": "abc"}),
    (GOOD, 200, {"Content-Length": "-1"}),
    (GOOD, 200, {"Content-Length": "9, 9"}),
    (GOOD, 302, {"Location": "http://[bad"}),
    (GOOD, 302, {"Location": "\u00ff:/\u00ff"}),
    (GOOD, 302, {"Location": "file:///etc/passwd"}),
    (GOOD, 200, {"Content-Encoding": "gzip"}),
    (GOOD, 200, {"Transfer-Encoding": "chunked"}),
])  # fmt: skip
def test_an_answer_that_is_not_the_file_is_one_sentence(
    server, tmp_path, body, status, headers, inside
):
    server.data, server.status, server.headers = body, status, headers
    with pytest.raises(UserError) as error:
        download_dataset([Download(server.url, "raw.zip", inside)], tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path / "raw.zip") in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} <= {
        *("raw.zip.lock", "raw.zip.part", "raw.zip.part.version")
    }
    server.data, server.status, server.headers, server.tag = GOOD, None, {}, '"two"'
    download_dataset([Download(server.url, "raw", "")], tmp_path)  # nothing stands in its way
    assert (tmp_path / "raw" / "b").read_bytes() == b"beta"


def test_a_cut_or_damaged_archive_is_refused_though_its_length_is_right(server, tmp_path):
    for body in (GOOD[:-30], GOOD.replace(b"beta", b"bets"), GOOD[:90]):
        server.data = body
        with pytest.raises(UserError, match=r"does not send raw\.zip .* by hand"):
            download_dataset([Download(server.url, "data", "")], tmp_path)
        assert os.listdir(tmp_path) == ["raw.zip.lock"]


def test_a_bomb_is_refused_by_the_limit_of_its_data_set(server, tmp_path):
    server.data = zip_files({"a": bytes(5000)})
    with pytest.raises(UserError, match="exceeds the 4999 bytes"):
        download_dataset([Download(server.url, "data", "", max_bytes=4999)], tmp_path)
    assert download_dataset([Download(server.url, "data", "", max_bytes=5000)], tmp_path)


def test_nothing_comes_over_plain_http_without_a_hash(tmp_path, monkeypatch):
    path = tmp_path / "y"
    sentence = fetch_failing("http://example.org/y", path)
    assert "is sent unprotected, and no sha256 of y is known" in sentence
    assert f"put it at {path}" in sentence

    def redirect(url, **_):
        answer = requests.Response()
        answer.url, answer.status_code, answer.raw = "http://example.org/y", 200, io.BytesIO(b"y")
        return answer

    monkeypatch.setattr(requests, "get", redirect)
    assert "http://example.org/y is sent unprotected" in fetch_failing("https://x/y", path)
    assert not path.exists()


def test_a_fifo_in_the_place_of_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "y")
    assert "y is not a regular file" in fetch_failing("https://x/y", tmp_path / "y", SHA)
