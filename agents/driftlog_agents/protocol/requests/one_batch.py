"""Fast path of Produce requests of one batch with a known prefix: nearly all of a connection's.

    int16 key, int16 version │ int32 correlation id │ client id … partition │ length, batch, tags
    ────────── same ─────────  ────── its own ──────  ──────── same ────────  ───── its own ─────

A producer sends the same bytes between the correlation id and the batch again and again.  The codec
decodes them once, and the reader remembers the result.  A request that differs in any way goes to
the codec: this module refuses nothing.

Pure.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

from driftlog_agents.protocol.api import ApiKey, RequestHeader
from driftlog_agents.protocol.messages import produce
from driftlog_agents.protocol.types import encode_varint, varint_tail

_PREFIX_AT: Final = 8
_LEAST_BATCH_BYTES: Final = 61
_MAX_KNOWN: Final = 4096
"""Prefixes of one connection, at most: one for each partition that it writes to."""
_MAX_PREFIX_BYTES: Final = 1024
"""Client id and topic (249), at most.  The 32 KiB of a rude client are not remembered."""
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Memory of the prefixes that all connections know.  Less: the codec decodes more requests of
producers that write to thousands of partitions."""
_OWN_BYTES: Final = 4 * 1024
"""Memory of the prefixes that a connection may always know: some eight, whatever others hold."""
_ENTRY_BYTES: Final = 400
"""Memory of a prefix beside twice its bytes, which its topic's name repeats."""
_INT32: Final = Struct(">i")
_FLEXIBLE_TAIL: Final = memoryview(b"\0\0\0")
"""No tagged fields of the partition, the topic, and the request."""


class OneBatch(NamedTuple):
    """The fields of a request, without its batch."""

    version: int
    acks: int
    timeout_ms: int
    topic: str
    partition: int


class PrefixMemory:
    """The memory of the prefixes that the connections of one agent know."""

    __slots__ = ("held_bytes",)

    def __init__(self) -> None:
        self.held_bytes = 0

    def take(self, size_bytes: int, own_bytes: int) -> bool:
        """Count *size_bytes* more for a connection that has *own_bytes*; False: there is no
        room."""
        if own_bytes + size_bytes > _OWN_BYTES and self.held_bytes + size_bytes > _MOST_BYTES:
            return False
        self.held_bytes += size_bytes
        return True


class OneBatchReader:
    """Reads the requests of one connection; it knows prefixes of one length at a time.

    Args:
        memory: shared by all connections.
    """

    __slots__ = (
        "_end",
        "_flexible",
        "_held_bytes",
        "_known",
        "_lengths_seen",
        "_lengths_until",
        "_memory",
        "_unpack",
    )

    def __init__(self, memory: PrefixMemory) -> None:
        self._memory = memory
        self._held_bytes = 0
        self._end = 1 << 62
        self._flexible = False
        self._known: dict[bytes, OneBatch] = {}
        self._unpack: Callable[[memoryview], tuple[Any, ...]] | None = None
        self._lengths_seen = 0
        self._lengths_until = 1

    def read(self, frame: memoryview) -> tuple[OneBatch, int, memoryview] | None:
        """The request, its correlation id and its batch; None: the codec must decode it
        (`learn`)."""
        at = self._end
        if len(frame) < at + _LEAST_BATCH_BYTES:
            return None
        assert self._unpack is not None
        key, version, correlation_id, prefix = self._unpack(frame)
        known = self._known.get(prefix)
        if known is None or key != ApiKey.PRODUCE or version != known.version:
            return None
        if self._flexible:
            size = frame[at]
            at += 1
            if size > 127:
                size, at = varint_tail(frame, at, size)
            end = at + size - 1
            if frame[end:] != _FLEXIBLE_TAIL:
                return None
        else:
            (size,) = _INT32.unpack_from(frame, at)
            at += 4
            end = at + size
            if end != len(frame):
                return None
        return known, correlation_id, frame[at:end]

    def learn(
        self, frame: memoryview, header: RequestHeader, request: produce.ProduceRequest
    ) -> None:
        """Remember what the codec read from *frame*, if similar requests may follow."""
        topics = request.topic_data
        if len(topics) != 1 or len(topics[0].partition_data) != 1:
            return
        (data,) = topics[0].partition_data
        batch = data.records
        if batch is None or len(batch) < _LEAST_BATCH_BYTES:
            return
        name = topics[0].name
        if not name or not name.isascii():
            return  # by its id, which only agents send, and rarely; or no topic has this name
        flexible = produce.API.is_flexible(header.api_version)
        size = len(batch)
        length, tail = _INT32.pack(size), 0
        if flexible:
            length, tail = encode_varint(size + 1), len(_FLEXIBLE_TAIL)
        stop = len(frame) - tail
        end = stop - size - len(length)
        if not _PREFIX_AT < end <= _PREFIX_AT + _MAX_PREFIX_BYTES:
            return
        if bytes(frame[end : stop - size]) != length:
            return  # with tagged fields, or a length written in a longer way
        new = end != self._end or flexible != self._flexible
        if (new and not self._worth_it()) or frame[stop - size : stop] != batch:
            return
        if new:
            self._end = end
            self._flexible = flexible
            self.forget()
            self._unpack = Struct(f">hhi{end - _PREFIX_AT}s").unpack_from
        elif len(self._known) >= _MAX_KNOWN:
            self.forget()
        prefix = bytes(frame[_PREFIX_AT:end])
        if prefix not in self._known:
            size_bytes = _ENTRY_BYTES + 2 * len(prefix)
            if not self._memory.take(size_bytes, self._held_bytes):
                return
            self._held_bytes += size_bytes
        self._known[prefix] = OneBatch(
            header.api_version, request.acks, request.timeout_ms, name, data.index
        )

    def forget(self) -> None:
        """Forget every prefix, and free its memory."""
        self._known = {}
        self._memory.held_bytes -= self._held_bytes
        self._held_bytes = 0

    def _worth_it(self) -> bool:
        """Whether to learn a new length: ever more rarely, as alternating lengths do not help."""
        self._lengths_seen += 1
        if self._lengths_seen < self._lengths_until:
            return False
        self._lengths_until *= 2
        return True
