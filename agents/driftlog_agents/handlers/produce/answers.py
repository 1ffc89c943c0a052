"""The answer to a Produce request of one batch, written by hand: most requests have one batch.

    int32 size, int32 correlation id [, tags]
    array of 1: topic, array of 1: int32 partition, int16 error 0, int64 base offset,
    int64 log append time, [int64 log start offset (5+)], [no record errors, null message (8+)]
    int32 throttle time 0

Up to version 12: later ones name the topic by its id.
`tests/agents/handlers/produce/test_answers.py` compares it with the codec's, version by version.
Pure.
"""

from functools import lru_cache
from struct import Struct

_FLEXIBLE_FROM = 9


@lru_cache(maxsize=4096)
def _frame(version: int, topic: str) -> tuple[Struct, bytes, bytes]:
    """The fixed part: a packer of the whole frame, and the bytes before and after the numbers."""
    name = topic.encode()
    if version >= _FLEXIBLE_FROM:
        size = len(name) + 1
        length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
        before = b"\0\x02" + length + name + b"\x02"
        # no record errors, null message, tags of partition and of topic; throttle; tags
        after = b"\x01\x00" + b"\0" + b"\0" + b"\0\0\0\0" + b"\0"
    else:
        before = b"\0\0\0\x01" + len(name).to_bytes(2, "big") + name + b"\0\0\0\x01"
        after = (b"\0\0\0\0\xff\xff" if version >= 8 else b"") + b"\0\0\0\0"
    numbers = "ihqqq" if version >= 5 else "ihqq"
    return Struct(f">ii{len(before)}s{numbers}{len(after)}s"), before, after


def encode_success(
    version: int,
    correlation_id: int,
    topic: str,
    partition: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytes:
    """The whole frame of an answer: the batch was appended at *base_offset*."""
    packer, before, after = _frame(version, topic)
    if version >= 5:
        return packer.pack(
            packer.size - 4,
            correlation_id,
            before,
            partition,
            0,
            base_offset,
            log_append_time_ms,
            log_start_offset,
            after,
        )
    return packer.pack(
        packer.size - 4,
        correlation_id,
        before,
        partition,
        0,
        base_offset,
        log_append_time_ms,
        after,
    )
