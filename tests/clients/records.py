"""The records that every client writes and every client must read, byte for byte.

Pure.
"""

import random
from dataclasses import dataclass
from typing import Final

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

_RANDOM: Final = random.Random(7)
_T: Final = 1_700_000_000_000

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """What a producer is given; *timestamp_ms* is an event's, not the clock's."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()

    def __repr__(self) -> str:
        """Without the megabytes."""
        key, value = _short(self.key), _short(self.value)
        return f"Record({key}, {value}, {self.timestamp_ms}, {self.headers})"


@dataclass(frozen=True, slots=True)
class Read:
    """What a consumer got, where."""

    offset: int
    record: Record
    timestamp_type: int = CREATE_TIME


def at_offsets(records: list[Record], base: int = 0) -> list[Read]:
    """*records* as a consumer must get them, the first one at *base*."""
    return [Read(base + index, record) for index, record in enumerate(records)]


CORPUS: Final = [
    Record(b"key", b"value", _T),
    Record(None, b"no key", _T + 1),
    Record(b"", b"an empty key", _T + 2),
    Record(b"an empty value", b"", _T + 3),
    Record(b"a tombstone", None, _T + 4),
    Record(b"", b"", _T + 5),
    Record(b"", None, _T + 6),
    Record(None, b"", _T + 7),
    Record(None, None, _T + 8),
    Record(None, b"x", _T + 9),
    Record(b"k", b"v", _T - 86_400_000),
    Record(b"out of order", b"older", 1),
    Record(b"\x00\xff\r\n\t", bytes(range(256)), _T + 10),
    Record(b"h", b"one header", _T + 11, (("name", b"value"),)),
    Record(b"h", b"order", _T + 12, (("z", b"1"), ("a", b"2"), ("m", b"3"))),
    Record(b"h", b"duplicates", _T + 13, (("d", b"1"), ("e", b"2"), ("d", b"1"), ("d", b"3"))),
    Record(b"h", b"empty header value", _T + 14, (("e", b""),)),
    Record(b"h", b"empty header name", _T + 15, (("", b"v"),)),
    Record(b"h", b"null header value", _T + 16, (("n", None), ("e", b""), ("n", b"3"))),
    Record(b"h", None, _T + 17, (("on a tombstone", b"\xff\xfe"), ("\u00fcn\u00ef", b"utf-8"))),
    *(
        Record(b"user-%d" % (n % 7), b'{"n": %d, "text": "again and again"}' % n, _T + 100 + n)
        for n in range(300)
    ),
    *(Record(None, bytes([65 + n % 26]), _T + 1_000 + n) for n in range(50)),
    Record(b"large", _RANDOM.randbytes(1_000_000), _T + 2_000),
    Record(b"the last", b"one", _T + 2_001),
]
"""Null and empty everything, one byte and one megabyte, headers, event times out of order."""


def _short(data: bytes | None) -> str:
    if data is None or len(data) <= 60:
        return repr(data)
    return f"{data[:20]!r}… ({len(data)} bytes)"
