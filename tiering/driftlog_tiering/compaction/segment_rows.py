"""The rows of sealed segments, row group by row group, for what rewrites them.

    reference ──▶ tail of the object ──▶ footer ──▶ row group ──CRC──▶ rows

A small object is read with one request.  Row groups are read whole and their CRCs are checked:
damaged bytes are never copied as records.

Shell.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import Manifest, ReplaceSegments, SegmentRef
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.segments.file_likes import Spool
from driftlog_tiering.segments.segment import (
    TAIL_BYTES,
    CorruptSegmentError,
    RowGroup,
    SegmentReader,
    footer_start,
)

EDIT_MS: Final = 30_000
"""An edit is committed within this time, or it fails."""

_WHOLE_BYTES: Final = 4 * 1024 * 1024
"""Objects up to this size are read with one request.  More: fewer requests, and more memory."""


class Bucket(Protocol):
    """The bucket as compaction and merging use it; every request has its deadline and its repeats
    here."""

    async def get(self, key: str, start: int, end: int) -> Buffer:
        """Exactly the bytes ``[start, end)`` of the object."""
        ...

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        """Create the object; the key is used once."""
        ...

    async def store_now_ms(self) -> int:
        """The store's clock, ms since 1970."""
        ...

    async def commit(self, edit: ReplaceSegments, began_ms: float, deadline_ms: float) -> None:
        """Make the edit part of the manifest by *deadline_ms*; the first PUT of what it adds began
        after *began_ms*.

        Raises:
            VoidEditError: another edit was faster.
            UnavailableError: the deadline has passed.
            StaleManifestError: the PUT began too long ago.
        """
        ...

    async def decode(self, size_bytes: int, work: Callable[..., Any], *args: Any) -> Any:
        """``work(*args)``, which decodes rows of *size_bytes*, in the worker thread; many bytes
        wait for their turn."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteEnvironment:
    """What a rewrite of segments uses of its process."""

    offload: Callable[..., Awaitable[Any]]
    """Runs the work on rows, in a worker thread."""
    spool: Callable[[], AbstractContextManager[Spool]]
    """A file for one segment."""
    nonce: Callable[[], str]
    """A new name for each object."""
    now_ms: Callable[[], float]
    """A clock that counts suspended time."""


class StoredRows(NamedTuple):
    """One row group of a segment, as stored."""

    ref: SegmentRef
    reader: SegmentReader
    group: RowGroup
    data: Buffer

    @property
    def raw_bytes(self) -> int:
        """Its share of the size of the segment's batches, uncompressed; the shares add up."""
        before = sum(g.decoded_bytes for g in self.reader.row_groups[: self.group.index])
        whole = sum(g.decoded_bytes for g in self.reader.row_groups)
        raw_bytes, end = self.reader.raw_bytes, before + self.group.decoded_bytes
        return raw_bytes * end // whole - raw_bytes * before // whole

    def table(self, columns: Sequence[str]) -> pa.Table:
        """The rows of *columns*.

        Raises:
            CorruptSegmentError: they are damaged.
        """
        try:
            return self.reader.read_table(self.group, self.data, columns)
        except CorruptSegmentError as error:
            raise CorruptSegmentError(f"{self.ref.key}: {error}") from error


@contextmanager
def damage_of(ref: SegmentRef) -> Iterator[None]:
    """Raises errors about the rows of *ref* as `CorruptSegmentError`."""
    try:
        yield
    except MemoryError as error:  # pyarrow's is an ArrowException, too
        raise UnavailableError(f"there is too little memory for {ref.key}") from error
    except (ValueError, pa.ArrowException) as error:
        raise CorruptSegmentError(f"{ref.key}: {error}") from error


class SegmentRows:
    """See the module.

    Args:
        offload: runs the work on footers, in a worker thread.
    """

    def __init__(self, bucket: Bucket, offload: Callable[..., Awaitable[Any]]) -> None:
        self._bucket = bucket
        self._offload = offload

    async def of(
        self, manifest: Manifest, segments: Sequence[SegmentRef]
    ) -> AsyncGenerator[StoredRows]:
        """The row groups of *segments* of the partition of *manifest*, undecodable ones apart."""
        for ref in segments:
            if ref.kind is SegmentKind.RAW:
                continue
            reader, tail = await self.open(manifest, ref)
            tail_start = ref.size_bytes - len(tail)
            for group in reader.row_groups:
                if group.start >= tail_start:
                    data: Buffer = memoryview(tail)[
                        group.start - tail_start : group.end - tail_start
                    ]
                else:
                    data = await self._bucket.get(ref.key, group.start, group.end)
                yield StoredRows(ref, reader, group, data)

    async def open(self, manifest: Manifest, ref: SegmentRef) -> tuple[SegmentReader, Buffer]:
        """The reader of a segment, and the end of its object, at least its footer.

        Raises:
            CorruptSegmentError: it is damaged, or the object is another segment.
        """
        size = ref.size_bytes
        start = max(0, size - TAIL_BYTES) if size > _WHOLE_BYTES else 0
        tail = await self._bucket.get(ref.key, start, size)
        try:
            needed = footer_start(tail, size)
            if needed < start:
                tail = b"".join((await self._bucket.get(ref.key, needed, start), tail))
            reader: SegmentReader = await self._offload(SegmentReader, tail, size, ref.footer_crc)
        except CorruptSegmentError as error:
            raise CorruptSegmentError(f"{ref.key}: {error}") from error
        is_this = (reader.topic_id, reader.partition, reader.base, reader.end)
        if is_this != (manifest.tp.topic_id, manifest.tp.partition, ref.base, ref.end):
            raise CorruptSegmentError(f"{ref.key}: the object is the segment {is_this}")
        return reader, tail
