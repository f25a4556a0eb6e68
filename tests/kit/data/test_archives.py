"""Archives are unpacked whole or not at all, and nothing is written outside of the folder."""

import bz2
import gzip
import lzma
import os
import random
import re
import socket
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from experiment_kit.data.archives import check_archive, extract_archive
from experiment_kit.errors import UserError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.data.archive_samples import (
    FILES,
    SAMPLE,
    find_tar_end,
    flip_bit,
    is_refused,
    list_content,
    make_archive,
    make_tar,
    make_zip,
)
from tests.kit.data.archive_samples import (
    NAMES as ARCHIVES,
)


def extract_failing(archive, tmp_path, **limits):
    """Return the error, and check that nothing was left behind."""
    before = {*os.listdir(tmp_path), "out.lock"}
    with pytest.raises(UserError) as error:
        extract_archive(archive, tmp_path / "out", **limits)
    assert {*os.listdir(tmp_path), "out.lock"} == before
    assert "\n" not in str(error.value)
    if "a file and a folder" not in archive.name:  # which the disk alone refuses
        with pytest.raises(UserError):
            check_archive(archive, **limits)
    assert str(archive) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ARCHIVES)
def test_everything_comes_out(name, tmp_path):
    path = make_archive(tmp_path / name, FILES)
    assert extract_archive(path, tmp_path / "new" / "out") == tmp_path / "new" / "out"
    assert list_content(tmp_path / "new" / "out") == FILES
    assert sorted(os.listdir(tmp_path / "new")) == ["out", "out.lock"]


def test_the_kind_of_archive_is_found_by_list_content(tmp_path):
    inner = make_zip(tmp_path / "inner.zip", FILES).read_bytes()
    path = make_tar(tmp_path / "misnamed.zip", {"inner.zip": inner})  # its tail looks like a zip
    assert list_content(extract_archive(path, tmp_path / "out")) == {"inner.zip": inner}


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
    assert set(os.listdir(base / "in")) <= {"out", "out.lock"}


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
    assert len(list_content(extract_archive(path, tmp_path / "out", max_bytes=7, max_files=2))) == 2


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
    path = make_tar(tmp_path / "a file and a folder", {"a": b"", "a/b": b""})
    assert "'a/b' cannot be unpacked" in extract_failing(path, tmp_path)


def test_a_folder_with_content_is_taken_as_it_is_and_an_empty_one_is_filled(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    path = make_zip(tmp_path / "x.zip", FILES)
    extract_archive(path, out)
    assert list_content(out) == FILES
    (out / "a.txt").write_text("mine")
    path.unlink()
    assert (extract_archive(path, out) / "a.txt").read_text() == "mine"


def test_a_folder_that_another_program_fills_meanwhile_is_kept(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "x.zip", FILES)
    infolist = zipfile.ZipFile.infolist

    def fill_meanwhile(self):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
        return infolist(self)

    monkeypatch.setattr(zipfile.ZipFile, "infolist", fill_meanwhile)
    assert list(list_content(extract_archive(path, tmp_path / "out"))) == ["theirs"]
    assert sorted(os.listdir(tmp_path)) == ["out", "out.lock", "x.zip"]


def test_a_folder_of_an_archive_becomes_the_folder(tmp_path):
    path = make_zip(tmp_path / "x.zip", {"readme": b"", "x/a.txt": b"1", "x/y/b.txt": b"2"})
    files = list_content(extract_archive(path, tmp_path / "out", inside="x"))
    assert files == {"a.txt": b"1", "y/b.txt": b"2"}
    with pytest.raises(UserError, match=r"x\.zip has no folder z: it is another archive"):
        extract_archive(path, tmp_path / "other", inside="z")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_cut_archive_is_refused(name, tmp_path):
    data = make_archive(tmp_path / name, SAMPLE).read_bytes()
    end = find_tar_end(data) if name == "x.tar" else len(data)
    between = range(0, end, 512) if name == "x.tar" else ()  # the members
    for length in {*range(0, end, end // 40), *range(end - 20, end), *between}:
        assert is_refused(tmp_path / name, data[:length]), length
    assert not is_refused(tmp_path / name, data[:end])


@pytest.mark.parametrize("name", [name for name in ARCHIVES if name != "x.tar"])
def test_a_flipped_bit_is_refused_or_harmless(name, tmp_path):
    data = make_archive(tmp_path / name, SAMPLE).read_bytes()
    positions = random.Random(0).sample(range(8 * len(data)), 60)
    refused = [is_refused(tmp_path / name, flip_bit(data, position)) for position in positions]
    assert sum(refused) > 30


def test_a_flipped_bit_in_a_header_of_a_tar_is_refused(tmp_path):
    data = make_archive(tmp_path / "x.tar", SAMPLE).read_bytes()  # its content has no checksum
    with tarfile.open(tmp_path / "x.tar") as tar:
        starts = [info.offset for info in tar]
    for start in starts:
        for position in random.Random(start).sample(range(8 * start, 8 * (start + 512)), 8):
            assert is_refused(tmp_path / "x.tar", flip_bit(data, position)), position


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_data_behind_the_end_is_refused_and_zeros_are_not(name, tmp_path):
    data = make_archive(tmp_path / name, SAMPLE).read_bytes()
    assert not is_refused(tmp_path / name, data + bytes(9999))
    assert is_refused(tmp_path / name, data + b"more")
    assert is_refused(tmp_path / name, data + data if name == "x.tar" else data + data[:-9])


def test_zeros_without_end_behind_a_tar_are_a_bomb(tmp_path):
    data = make_tar(tmp_path / "x.tar", {"a": b"1"}).read_bytes()
    (tmp_path / "x.tar.xz").write_bytes(lzma.compress(data + bytes(3_000_000)))
    extract_archive(tmp_path / "x.tar.xz", tmp_path / "whole", max_bytes=4_000_000)
    sentence = extract_failing(tmp_path / "x.tar.xz", tmp_path, max_bytes=2_000_000)
    assert "something follows its end" in sentence


def test_a_zip_that_does_not_begin_with_its_first_member_is_refused(tmp_path):
    inner = make_zip(tmp_path / "inner.zip", FILES).read_bytes()
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:  # stored: it ends in a zip, if cut
        archive.writestr("inner.zip", inner)
    data = (tmp_path / "x.zip").read_bytes()
    end = data.index(b"PK\x05\x06") + 22
    (tmp_path / "x.zip").write_bytes(data[:end])
    assert "does not begin with its first member" in extract_failing(tmp_path / "x.zip", tmp_path)


EMPTY_ZIP = b"PK\x05\x06" + bytes(18)


@pytest.mark.parametrize(
    "data", [b"", bytes(99), bytes(10240), b"<html>", EMPTY_ZIP, b"alpha " * 200]
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_what_is_no_archive_is_refused(data, compress, tmp_path):
    (tmp_path / "x").write_bytes(compress(data))
    assert re.search("cannot be read|an empty archive", extract_failing(tmp_path / "x", tmp_path))


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "folder", "absent"])
def test_what_is_no_file_is_refused_at_once(kind, tmp_path, monkeypatch):
    path = Path(os.devnull) if kind == "device" else tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        monkeypatch.chdir(tmp_path)  # a socket's name must be short
        socket.socket(socket.AF_UNIX).bind("x")
    assert f"{path} is not a regular file" in extract_failing(path, tmp_path)


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"X"])
def test_a_header_is_bounded_before_it_is_read(kind, tmp_path, monkeypatch):
    header = tarfile.TarInfo("much")
    header.type, header.size = kind, 3 << 30
    blocks = header.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)
    (tmp_path / "x.tar.xz").write_bytes(lzma.compress(blocks))
    read = lzma.LZMAFile.read
    monkeypatch.setattr(lzma.LZMAFile, "read", lambda self, size=-1: read(self, min(size, 1 << 20)))
    sentence = extract_failing(tmp_path / "x.tar.xz", tmp_path)
    assert f"'much' has a header of {3 << 30} bytes" in sentence


def test_a_negative_size_is_refused(tmp_path):
    header = tarfile.TarInfo("less")
    header.size = -1024
    for name, blocks in {
        "base-256": header.tobuf(tarfile.GNU_FORMAT),
        "octal": set_size(header, b"-0000002000\0"),
    }.items():
        (tmp_path / name).write_bytes(blocks + bytes(4096))
        assert "'less' has a negative size" in extract_failing(tmp_path / name, tmp_path)


def set_size(header, digits):
    """Return the block of a header with other digits in its size."""
    block = bytearray(tarfile.TarInfo(header.name).tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = digits
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("size", ["-1024", "abc", "5.0", "00", "9" * 5000, "٣"])
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_pax_size_must_be_a_number(size, kind, tmp_path):
    header = tarfile.TarInfo("odd")
    record = f" size={size}\n".encode()
    length = next(n for n in range(9999) if n == len(record) + len(str(n)))
    pax = tarfile.TarInfo("pax")
    pax.type, pax.size = kind, length
    body = (str(length).encode() + record).ljust(-(-length // 512) * 512, b"\0")
    blocks = pax.tobuf(tarfile.USTAR_FORMAT) + body + header.tobuf(tarfile.USTAR_FORMAT)
    (tmp_path / "x").write_bytes(blocks + bytes(10240))
    assert f"'odd' has the size {size[:40]}" in extract_failing(tmp_path / "x", tmp_path)


def test_a_sparse_file_is_refused(tmp_path):
    path = make_tar(tmp_path / "x", {"holes": b""}, type=tarfile.GNUTYPE_SPARSE)
    assert "'holes' is a sparse file" in extract_failing(path, tmp_path)


def test_members_that_the_list_of_a_zip_hides_are_missed(tmp_path):
    path = make_zip(tmp_path / "x.zip", {"a": b"1", "b": b"2"})
    data = path.read_bytes()
    path.write_bytes(flip_bit(data, 8 * (data.index(b"PK\x01\x02") + 33)))  # a long comment
    assert "its members are not as many" in extract_failing(path, tmp_path)
    path.write_bytes(data + b"more")
    assert "something follows its end" in extract_failing(path, tmp_path)


def test_the_members_of_a_zip_of_very_many_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)  # in place of 65,535
    path = make_zip(tmp_path / "x.zip", FILES)
    data = path.read_bytes()[:-12] + b"\xff\xff" + path.read_bytes()[-10:]
    path.write_bytes(data)
    check_archive(path)
    count = data.rindex(b"PK\x06\x06") + 32
    assert data[count] == len(FILES)
    path.write_bytes(flip_bit(data, 8 * count))
    assert "its members are not as many" in extract_failing(path, tmp_path)


def test_a_zip_that_cannot_be_read_is_one_sentence(tmp_path):
    path = make_zip(tmp_path / "x.zip", {"nämé": b"1"})
    good = path.read_bytes()
    local, central = 0, good.index(b"PK\x01\x02")
    for damaged, reason in {
        good.replace("nämé".encode(), b"n\xff\xffm\xff\xff"): "can't decode",
        good[: local + 4] + (9999).to_bytes(2, "little") + good[local + 6 :]: "a newer version",
        good[: central + 6] + (9999).to_bytes(2, "little") + good[central + 8 :]: "a newer version",
        flip_bit(good, 8 * (central + 9) + 3): "a name in two encodings",
    }.items():
        path.write_bytes(damaged)
        assert reason in extract_failing(path, tmp_path)


def test_headers_that_never_end_are_refused(tmp_path):
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2
    (tmp_path / "x").write_bytes((header.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 9999)
    assert "cannot be read" in extract_failing(tmp_path / "x", tmp_path)
