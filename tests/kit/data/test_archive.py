"""Archives are unpacked whole or not at all, and nothing is written outside of the folder."""

import io
import os
import stat
import tarfile
import zipfile

import pytest
from experiment_kit.data.download import extract_archive
from experiment_kit.errors import UserError
from hypothesis import given, settings
from hypothesis import strategies as st

FILES = {"a.txt": b"alpha", "deep/er/b.bin": bytes(range(256)) * 9, "deep/empty": b""}
TARS = {"x.tar": "w", "x.tar.gz": "w:gz", "x.tar.xz": "w:xz", "x.tar.bz2": "w:bz2"}


def make_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_tar(path, files, mode="w", **fields):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in fields.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return path


def make_archive(path, files):
    return make_tar(path, files, TARS[path.name]) if path.name in TARS else make_zip(path, files)


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def extract_failing(archive, tmp_path, **limits):
    """Return the error, and check that nothing was left behind."""
    before = set(os.listdir(tmp_path))
    with pytest.raises(UserError) as error:
        extract_archive(archive, tmp_path / "out", **limits)
    assert set(os.listdir(tmp_path)) == before
    assert str(archive) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["x.zip", *TARS])
def test_everything_comes_out(name, tmp_path):
    path = make_archive(tmp_path / name, FILES)
    assert extract_archive(path, tmp_path / "new" / "out") == tmp_path / "new" / "out"
    assert content(tmp_path / "new" / "out") == FILES
    assert os.listdir(tmp_path / "new") == ["out"]


def test_the_kind_of_archive_is_found_by_content(tmp_path):
    inner = make_zip(tmp_path / "inner.zip", FILES).read_bytes()
    path = make_tar(tmp_path / "misnamed.zip", {"inner.zip": inner})  # its tail looks like a zip
    assert content(extract_archive(path, tmp_path / "out")) == {"inner.zip": inner}


def test_folders_of_archives_and_dots_are_kept(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        (tmp_path / "source" / "empty").mkdir(parents=True)
        archive.add(tmp_path / "source", arcname=".")
    assert (extract_archive(tmp_path / "x.tar", tmp_path / "out") / "empty").is_dir()


NAMES = ["../evil", "a/../../evil", "/tmp/evil", "..\\evil", "C:\\evil", "\\evil", "a/.."]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_no_name_leaves_the_folder(make, name, tmp_path):
    sentence = extract_failing(make(tmp_path / "x", {"good": b"", name: b"evil"}), tmp_path)
    assert repr(name) in sentence
    assert "outside" in sentence


@given(st.text("./\\:aC\0", min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_whatever_the_name_nothing_is_written_elsewhere(tmp_path_factory, name):
    base = tmp_path_factory.mktemp("base")
    with zipfile.ZipFile(base / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("placeholder")
        info.filename = name  # the constructor would clean it
        archive.writestr(info, b"evil")
    try:
        extract_archive(base / "x.zip", base / "in" / "out")
    except UserError:
        assert not os.path.lexists(base / "in" / "out")
    assert {p.relative_to(base).parts[0] for p in base.rglob("*")} <= {"x.zip", "in"}
    assert set(os.listdir(base / "in")) <= {"out"}


@pytest.mark.parametrize("target", ["/etc/passwd", "../../evil", "good"])
@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_devices_of_a_tar_are_refused(kind, target, tmp_path):
    path = make_tar(tmp_path / "x.tar", {"node": b""}, type=kind, linkname=target)
    assert "'node' is a link or a device" in extract_failing(path, tmp_path)


def test_links_of_a_zip_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    assert "'link' is a link" in extract_failing(tmp_path / "x.zip", tmp_path)


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_limits_are_exact(make, tmp_path):
    path = make(tmp_path / "x", {"a": b"123", "b": b"4567"})
    assert "'b' exceeds the 6 bytes" in extract_failing(path, tmp_path, max_bytes=6)
    assert "'b' is one more than the 1 members" in extract_failing(path, tmp_path, max_files=1)
    assert len(content(extract_archive(path, tmp_path / "out", max_bytes=7, max_files=2))) == 2


def test_a_bomb_whose_header_lies_is_stopped_by_what_it_writes(tmp_path):
    path = make_zip(tmp_path / "x.zip", {"bomb": bytes(50_000_000)})
    honest = (50_000_000).to_bytes(4, "little")
    assert path.stat().st_size < 100_000
    assert "exceeds" in extract_failing(path, tmp_path, max_bytes=1_000_000)
    path.write_bytes(path.read_bytes().replace(honest, (10).to_bytes(4, "little")))
    assert "x.zip" in extract_failing(path, tmp_path, max_bytes=1_000_000)


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "x.tar.xz", "x.tar.bz2"])
@pytest.mark.parametrize("part", [0.0, 0.4, 0.97])
def test_a_truncated_archive_leaves_nothing(name, part, tmp_path):
    files = {f"{i}": os.urandom(20_000) for i in range(5)}
    path = make_archive(tmp_path / name, files)
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    assert "cannot be" in extract_failing(path, tmp_path)


def test_a_file_that_is_also_a_folder_is_an_error(tmp_path):
    path = make_tar(tmp_path / "x", {"a": b"", "a/b": b""})
    assert "'a/b' cannot be unpacked" in extract_failing(path, tmp_path)


def test_a_folder_with_content_is_taken_as_it_is_and_an_empty_one_is_filled(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    path = make_zip(tmp_path / "x.zip", FILES)
    extract_archive(path, out)
    assert content(out) == FILES
    (out / "a.txt").write_text("mine")
    path.unlink()
    assert (extract_archive(path, out) / "a.txt").read_text() == "mine"


def test_the_quicker_of_two_processes_wins(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "x.zip", FILES)
    rename = type(path).rename

    def late(self, target):
        target.mkdir()
        (target / "theirs").touch()
        return rename(self, target)

    monkeypatch.setattr(type(path), "rename", late)
    assert list(content(extract_archive(path, tmp_path / "out"))) == ["theirs"]
    assert sorted(os.listdir(tmp_path)) == ["out", "x.zip"]


def test_a_folder_of_an_archive_becomes_the_folder(tmp_path):
    path = make_zip(tmp_path / "x.zip", {"readme": b"", "x/a.txt": b"1", "x/y/b.txt": b"2"})
    files = content(extract_archive(path, tmp_path / "out", inside="x"))
    assert files == {"a.txt": b"1", "y/b.txt": b"2"}
    with pytest.raises(UserError, match=r"x\.zip has no folder z: it is another archive"):
        extract_archive(path, tmp_path / "other", inside="z")
    assert sorted(os.listdir(tmp_path)) == ["out", "x.zip"]
