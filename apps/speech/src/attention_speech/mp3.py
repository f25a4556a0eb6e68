"""The table of an mp3 file that says how long it is, made where it is missing or wrong."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

_KBITS = (  # layer III of MPEG-2 and 2.5, then of MPEG-1
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
)
_TABLE = re.compile(rb"(?:Xing|Info)...[\x01\x03\x05\x07\x09\x0b\x0d\x0f](.{4})|VBRI.{10}(.{4})",
                    re.DOTALL)  # fmt: skip
_TABLE_END = 64  # bytes of a frame within which a table is
_RESERVED, _MPEG_1 = 1, 3  # versions
_SLACK = 2  # frames by which a count may be wrong


class Frame(NamedTuple):
    """A frame: where it starts, its bytes, and what all frames of one recording share."""

    start: int
    size: int
    kind: tuple[int, int, bool]  # bits of version and sample rate, one channel or two


def split_mp3(data: bytes) -> list[bytes]:
    """Return the recordings of a file, each with a table that covers all of it.

    libsndfile stops at the end that the first table tells, where files were joined, and at an
    estimate where there is no table, as in streams and cut files. A whole file stays as it is.

    Raises ValueError where the sample rate or the number of channels changes within the file.

    Source: http://www.mp3-tech.org/programmer/frame_header.html
    """
    frames = list(iterate_frames(data))
    if not frames:  # layer I or II
        return [data]
    (kind, _), *others = Counter(frame.kind for frame in frames).most_common()
    if others and others[0][1] > _SLACK:
        raise ValueError("several sample rates or numbers of channels in one file")
    frames = [frame for frame in frames if frame.kind == kind]  # a tag may look like a few others
    tables = [
        _TABLE.search(data, one.start, one.start + min(one.size, _TABLE_END)) for one in frames
    ]
    begins = sorted({0, *(number for number, table in enumerate(tables) if table)})
    parts = []
    for begin, end in pairwise([*begins, len(frames)]):
        table = tables[begin]
        content = data[frames[begin].start : frames[end].start if end < len(frames) else None]
        if table and int.from_bytes(table[1] or table[2]) >= end - begin - 1 - _SLACK:
            parts.append(content)
        elif not table or end - begin > 1:
            parts.append(_make_table(content, kind) + content[frames[begin].size * bool(table) :])
    return parts


def _make_table(frame: bytes, kind: tuple[int, int, bool]) -> bytes:
    """Return a frame that tells a length above that of any file."""
    version, _, is_mono = kind
    header = bytearray(frame[:4])
    header[1] |= 1  # no checksum
    header[2] = 9 << 4 | header[2] & 0x0C  # 128 or 80 kbit/s, which leave room for the table
    gap = (17, 9) if version != _MPEG_1 else (32, 17)
    content = bytes(header) + bytes(gap[is_mono]) + b"Info\0\0\0\1\0\xff\xff\xff"
    return content.ljust(_measure_frame(header, 0), b"\0")


def iterate_frames(data: bytes) -> Iterator[Frame]:
    """Find the frames of layer III; tags and damage between them are passed over."""
    at = expected = 0
    while (at := data.find(b"\xff", at)) >= 0:
        size = _measure_frame(data, at)
        if size and (at == expected or _measure_frame(data, at + size)):
            version, rate = data[at + 1] >> 3 & 3, data[at + 2] >> 2 & 3
            yield Frame(at, size, (version, rate, data[at + 3] >= 0xC0))
            at = expected = at + size
        else:
            at += 1


def _measure_frame(data: bytes | bytearray, at: int) -> int:
    """Return the bytes of the frame whose header is at a place, 0 where there is none."""
    header = data[at : at + 4]
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return 0
    version = header[1] >> 3 & 3
    rate = (44100, 48000, 32000, 0)[header[2] >> 2 & 3] >> (2, 0, 1, 0)[version]
    bits = _KBITS[version == _MPEG_1][header[2] >> 4] * 1000
    if version == _RESERVED or not bits or not rate:
        return 0
    return (144 if version == _MPEG_1 else 72) * bits // rate + (header[2] >> 1 & 1)
