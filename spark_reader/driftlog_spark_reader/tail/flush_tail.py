"""The tail from the metadata store and flush objects: no agent is asked, and none need live.

    driver     one transaction: topic, partitions, flush records ──▶ footers ──▶ `PartitionCut`
    executors  spans of batches ──▶ rows, a few reads ahead

Each partition is cut at one revision of the metadata store, so what happens beside it is in the cut
or is not: a commit adds a flush record, sealing moves the sealed end and deletes flush records, and
consolidation replaces flush records by others with the same batches.  A claim puts its session into
the partition's list before its first commit, so the transaction reads the flush records of all
listed sessions; if it finds a session that it did not read, it is repeated.  Leadership is of no
account: what a dead agent had committed stays in the metadata store.

An object whose flush record is deleted stays for the grace period (12 h).  So footers can be read
after the transaction, and pieces hours after they were planned.

Shell.
"""

import asyncio
import time
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import pyarrow as pa

from driftlog_metadata.schema.codec import (
    decode_at,
    decode_cluster,
    decode_flush_record,
    decode_partition_state,
    decode_topic,
)
from driftlog_metadata.schema.keys import (
    CLUSTER_KEY,
    FLUSHES_PREFIX,
    flushes_prefix,
    parse_flush_key,
    parse_partition_key,
    partitions_prefix,
    topic_key,
)
from driftlog_metadata.schema.model import FlushRecord, PartitionState, Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, DeclinedError, StoreError
from driftlog_metadata.stores.store import Get, GetPrefix, KeyValue, MetadataStore
from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.common.errors import (
    DamagedTopicError,
    DataLossError,
    DeletedTopicError,
    RawSegmentSkippedWarning,
    StorageError,
    TailUnavailableError,
)
from driftlog_spark_reader.options.resolution import LogEnds
from driftlog_spark_reader.tail.flush_cut import (
    ObjectBatches,
    PartitionCut,
    RangeDecoder,
    UndecodableBatch,
    cut_partitions,
    first_since,
    plan_ranges,
    shared_reads,
    since,
    topic_batches,
)
from driftlog_spark_reader.tail.port import FlushSpan, TailRange
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.flush_object import decode_footer
from driftlog_tiering.foundation.types import Buffer

T = TypeVar("T")

FOOTERS_AT_ONCE: Final = 32
"""Requests at once, as agents read footers."""

SPANS_AHEAD: Final = 8
"""Reads in flight of a task: without them, each small flush takes a round trip."""

_SESSIONS_PER_TXN: Final = 100
"""Of the 128 operations of a transaction."""

_FOOTER_BYTES: Final = 64 * 1024 * 1024
"""Of encoded footers, kept for other topics; 100 flushes of 1,000 partitions take 4 MiB."""

_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.2
_ROUNDS: Final = 100
"""Transactions of one cut: each has one more group of sessions, or found a new one."""


class Revision(NamedTuple):
    """Partitions of a topic, and the flush records of all sessions that they list, at one revision
    of the metadata store."""

    states: Mapping[int, PartitionState]
    records: Sequence[FlushRecord]


class FlushTail:
    """See the module; a `Tail`.

    Args:
        files: the bucket's objects; closed by `close`.
        open_store: connects to the metadata store, on the event loop that runs.
        fail_on_data_loss: False: readers leave out batches that cannot be decoded.
    """

    def __init__(
        self,
        files: Files,
        open_store: Callable[[], MetadataStore],
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._files = files
        self._fail_on_data_loss = fail_on_data_loss
        self._open_store = open_store
        self._cuts: dict[TopicPartition, PartitionCut] = {}
        self._sessions: dict[UUID, dict[int, tuple[str, ...]]] = {}
        """Sessions that partitions listed last: what the next transaction reads at once."""
        self._footers: OrderedDict[str, bytes] = OrderedDict()
        self._footer_bytes = 0
        self._batches: dict[UUID, dict[str, ObjectBatches]] = {}
        self._cluster_id: str | None = None
        """The cluster of the bucket, once it was compared with the metadata store's."""
        self._threads = ThreadPoolExecutor(FOOTERS_AT_ONCE, thread_name_prefix="footers")

    # ── The port ──

    def ends(self, topic: Topic, partitions: Collection[int]) -> dict[int, LogEnds]:
        """See `Tail.ends`."""
        cuts = self._cut(topic, partitions)
        return {p: LogEnds(cuts[p].log_start, cuts[p].end) for p in partitions}

    def plan(self, topic: Topic, partition: int, start: int, end: int) -> list[TailRange]:
        """See `Tail.plan`."""
        tp = TopicPartition(topic.topic_id, partition)
        cut = self._cuts.get(tp)
        if cut is None or not cut.has(start, end):
            cut = self._cut(topic, [partition])[partition]
        return plan_ranges(cut, topic.name, tp, start, end)

    def offset_at(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """See `Tail.offset_at`."""
        tp = TopicPartition(topic.topic_id, partition)
        cut = self._cuts.get(tp) or self._cut(topic, [partition])[partition]
        for span in since(cut, timestamp_ms):
            start = max(span.base, cut.log_start)
            piece = TailRange(topic.name, topic.topic_id, partition, start, span.end, (span,))
            with _SpanReads(self._files, [piece]) as reads:
                for rows in _rows(reads, piece):
                    if isinstance(rows, UndecodableBatch):  # a reader from there misses nothing
                        return start, rows.max_timestamp_ms
                    if (found := first_since(rows, timestamp_ms)) is not None:
                        return found
        return None

    def reader(self) -> "FlushReader":
        """See `Tail.reader`."""
        return FlushReader(self._files.root, self._fail_on_data_loss)

    def close(self) -> None:
        """See `Tail.close`."""
        self._threads.shutdown()
        self._files.close()

    # ── The cut ──

    def _cut(self, topic: Topic, partitions: Collection[int]) -> dict[int, PartitionCut]:
        """The cut of now, from which objects may be gone that were named before."""
        for last in (False, True):
            revisions = self._read_keys(topic, partitions)
            try:
                objects = self._objects(topic.topic_id, revisions)
            except DamagedTopicError:
                if last:
                    raise
                continue  # perhaps replaced or sealed, a grace period after the transaction
            cuts: dict[int, PartitionCut] = {}
            for states, records in revisions:
                named = [objects[record.object_key] for record in records]
                cuts |= cut_partitions(topic.name, states, named)
            self._cuts |= {TopicPartition(topic.topic_id, p): cut for p, cut in cuts.items()}
            return cuts
        raise AssertionError("the loop returns or raises")

    def _objects(self, topic_id: UUID, revisions: Sequence[Revision]) -> dict[str, ObjectBatches]:
        """The batches of a topic in all objects, by key; no footer is read again.

        Raises:
            DamagedTopicError: an object is missing or damaged.
            StorageError: the bucket does not answer.
        """
        known = self._batches.get(topic_id, {})
        wanted = {record.object_key: record for found in revisions for record in found.records}
        new = [record for key, record in wanted.items() if key not in known]
        found = {key: known[key] for key in wanted if key in known}
        for record, footer in zip(new, self._threads.map(self._footer, new), strict=True):
            found[record.object_key] = self._batches_of(record, footer, topic_id)
        self._batches[topic_id] = found
        return found

    def _footer(self, record: FlushRecord) -> bytes:
        key = record.object_key
        kept = self._footers.get(key)
        if kept is not None:
            return kept
        read = self._files.read_range(key, record.footer_start, record.size_bytes)
        if read is None:
            raise _missing(self._files, key, "a flush record names it")
        return bytes(read)

    def _batches_of(self, record: FlushRecord, footer: bytes, topic_id: UUID) -> ObjectBatches:
        key = record.object_key
        try:
            batches = topic_batches(key, decode_footer(footer), topic_id)
        except CorruptError as error:
            raise DamagedTopicError(
                f"{self._files.path(key)}: {error}; restore it from a copy of the bucket"
            ) from error
        if key not in self._footers:
            self._footers[key] = footer
            self._footer_bytes += len(footer)
            while self._footer_bytes > _FOOTER_BYTES:
                self._footer_bytes -= len(self._footers.popitem(last=False)[1])
        return batches

    # ── Keys ──

    def _read_keys(self, topic: Topic, partitions: Collection[int]) -> list[Revision]:
        """What the metadata store says now, of each partition once."""
        pause_s = _FIRST_PAUSE_S
        for _ in range(_TRIES - 1):
            try:
                return self._run(self._keys(topic, partitions))
            except DeclinedError as error:
                raise _no_answer(error) from error
            except StoreError:
                time.sleep(pause_s)
                pause_s *= 2
        try:
            return self._run(self._keys(topic, partitions))
        except StoreError as error:
            raise _no_answer(error) from error

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result, from an event loop of its own: a notebook's cell runs in one already."""
        return self._threads.submit(asyncio.run, coroutine).result()

    async def _keys(self, topic: Topic, partitions: Collection[int]) -> list[Revision]:
        store = self._open_store()
        try:
            return await self._keys_in(store, topic, partitions)
        finally:
            await store.close()

    async def _keys_in(
        self, store: MetadataStore, topic: Topic, partitions: Collection[int]
    ) -> list[Revision]:
        found: list[Revision] = []
        known = self._sessions.setdefault(topic.topic_id, {})
        waiting = {partition: known.get(partition, ()) for partition in partitions}
        for _ in range(_ROUNDS):
            prefixes = _prefixes(waiting.values())
            answer = await store.txn(
                [],
                [
                    Get(CLUSTER_KEY),
                    Get(topic_key(topic.name)),
                    GetPrefix(partitions_prefix(topic.topic_id)),
                    *map(GetPrefix, prefixes),
                ],
            )
            cluster, named, keys, *flushes = answer.reads
            self._check_cluster(cluster)
            _check_topic(topic, named)
            now = _states(keys)
            states = {partition: now.get(partition, PartitionState()) for partition in waiting}
            waiting = {partition: state.sessions for partition, state in states.items()}
            known |= waiting
            read = {p: states[p] for p, listed in waiting.items() if _covers(prefixes, listed)}
            if read:
                found.append(Revision(read, _records(kv for kvs in flushes for kv in kvs)))
            waiting = {p: listed for p, listed in waiting.items() if p not in read}
            if not waiting:
                return found
        raise TailUnavailableError(
            f"topic {topic.name}: its partitions change leaders faster than they can be read; "
            "run the query again"
        )

    def _check_cluster(self, kvs: Sequence[KeyValue]) -> None:
        """
        Raises:
            StorageError: the metadata store is of another cluster than the bucket, or of none.
        """
        if not kvs:
            raise StorageError("etcd has no driftlog cluster; option etcd has another address")
        cluster = _decoded(kvs[0], decode_cluster)
        if cluster.needs_release is not None:
            raise StorageError(
                f"the cluster needs driftlog {cluster.needs_release}; upgrade it in this Spark job"
            )
        if self._cluster_id != cluster.cluster_id:
            self._cluster_id = _bucket_cluster(self._files)
        if self._cluster_id != cluster.cluster_id:
            raise StorageError(
                f"etcd has the cluster {cluster.cluster_id}, and {self._files.root} is the bucket "
                f"of {self._cluster_id}: option etcd or location has another cluster's address"
            )


@dataclass(frozen=True, slots=True)
class FlushReader:
    """Reads pieces from flush objects at *location*; a `TailReader`."""

    location: str
    fail_on_data_loss: bool = True

    def read(self, *pieces: TailRange) -> Iterator[pa.RecordBatch]:
        """See `TailReader.read`."""
        files = open_files(self.location)
        try:
            with _SpanReads(files, pieces) as reads:
                for piece in pieces:
                    for rows in _rows(reads, piece):
                        if isinstance(rows, UndecodableBatch):
                            self._leave_out(piece, rows)
                        else:
                            yield rows
        finally:
            files.close()

    def _leave_out(self, piece: TailRange, batch: UndecodableBatch) -> None:
        found = f"{piece.topic}-{piece.partition}: offsets {batch.base} to {batch.end - 1}"
        if self.fail_on_data_loss:
            raise DataLossError(
                f"{found} cannot be decoded ({batch.reason}); consumers get them as they came.  "
                "Leave them out with failOnDataLoss=false"
            )
        warnings.warn(
            f"{found} are not in the DataFrame: {batch.reason}; they are kept as they came",
            RawSegmentSkippedWarning,
            stacklevel=3,
        )


def _rows(reads: "_SpanReads", piece: TailRange) -> Iterator[pa.RecordBatch | UndecodableBatch]:
    decoder = RangeDecoder(piece)
    for span, body in reads.bodies(piece.spans):
        yield from decoder.add(span, body)
    yield from decoder.take()


class _SpanReads:
    """Reads the spans of pieces, some ahead; what several pieces have of an object, once."""

    def __init__(self, files: Files, pieces: Sequence[TailRange]) -> None:
        self._files = files
        self._shared = shared_reads(pieces)
        self._uses = Counter(span.key for piece in pieces for span in piece.spans)
        self._kept: dict[str, Future[Buffer]] = {}
        self._threads = ThreadPoolExecutor(SPANS_AHEAD, thread_name_prefix="tail")

    def __enter__(self) -> "_SpanReads":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def bodies(self, spans: Iterable[FlushSpan]) -> Iterator[tuple[FlushSpan, Buffer]]:
        """The bytes of *spans*, in their order."""
        ahead: deque[tuple[FlushSpan, Future[Buffer]]] = deque()
        for span in spans:
            ahead.append((span, self._begin(span)))
            if len(ahead) == SPANS_AHEAD:
                yield self._end(*ahead.popleft())
        while ahead:
            yield self._end(*ahead.popleft())

    def _begin(self, span: FlushSpan) -> Future[Buffer]:
        shared = self._shared.get(span.key)
        if shared is None:
            return self._threads.submit(self._read, span)
        if span.key not in self._kept:
            self._kept[span.key] = self._threads.submit(self._read, shared)
        return self._kept[span.key]

    def _end(self, span: FlushSpan, reading: Future[Buffer]) -> tuple[FlushSpan, Buffer]:
        body = reading.result()
        shared = self._shared.get(span.key)
        if shared is None:
            return span, body
        self._uses[span.key] -= 1
        if not self._uses[span.key]:
            del self._kept[span.key]
        at = span.position - shared.position
        return span, memoryview(body)[at : at + span.length]

    def _read(self, span: FlushSpan) -> Buffer:
        body = self._files.read_range(span.key, span.position, span.position + span.length)
        if body is None:
            raise _missing(self._files, span.key, "the query was planned with it")
        return body


def _bucket_cluster(files: Files) -> str | None:
    """The cluster that the newest cluster file names; None: the bucket has none."""
    numbers = [0]
    for name in files.names(layout.CLUSTER_PREFIX):
        try:
            numbers.append(layout.parse_cluster_key(layout.CLUSTER_PREFIX + name).number)
        except ValueError:
            continue  # an unrecognised object
    body = files.read(layout.cluster_key(max(numbers)))
    try:
        return None if body is None else bucket_files.decode_cluster(body).cluster_id
    except CorruptError as error:
        raise StorageError(f"{files.root}: its cluster file is damaged: {error}") from error


def _prefixes(wanted: Iterable[Sequence[str]]) -> list[str]:
    """Prefixes of the flush records of the first partitions' sessions, as many as one transaction
    reads."""
    sessions: dict[str, None] = {}
    for listed in wanted:
        more = sessions | dict.fromkeys(listed)
        if len(more) <= _SESSIONS_PER_TXN:
            sessions = more
        elif not sessions:  # one partition has more than a transaction has operations: read all
            return [FLUSHES_PREFIX]
    return [flushes_prefix(session) for session in sessions]


def _covers(prefixes: Sequence[str], sessions: Iterable[str]) -> bool:
    return prefixes == [FLUSHES_PREFIX] or set(map(flushes_prefix, sessions)) <= set(prefixes)


def _check_topic(topic: Topic, kvs: Sequence[KeyValue]) -> None:
    """
    Raises:
        DeletedTopicError: there is no topic of that id under that name.
    """
    if not kvs or _decoded(kvs[0], decode_topic).topic_id != topic.topic_id:
        raise DeletedTopicError(
            f"topic {topic.name!r} ({topic.topic_id}) is deleted, and the agents delete its objects"
        )


def _states(kvs: Iterable[KeyValue]) -> dict[int, PartitionState]:
    found: dict[int, PartitionState] = {}
    for kv in kvs:
        try:
            partition = parse_partition_key(kv.key).partition
        except ValueError:
            continue  # an unrecognised key
        found[partition] = _decoded(kv, decode_partition_state)
    return found


def _records(kvs: Iterable[KeyValue]) -> list[FlushRecord]:
    found: list[FlushRecord] = []
    for kv in kvs:
        try:
            parse_flush_key(kv.key)
        except ValueError:
            continue  # an unrecognised key
        found.append(_decoded(kv, decode_flush_record))
    return found


def _decoded(kv: KeyValue, decode: Callable[[bytes], T]) -> T:
    try:
        return decode_at(kv.key, kv.value, decode)
    except CorruptError as error:
        raise DamagedTopicError(f"etcd: {error}") from error


def _missing(files: Files, key: str, why: str) -> DamagedTopicError:
    return DamagedTopicError(
        f"{files.path(key)}: missing, and {why}. Flush objects stay for the grace period (12 h) "
        "after their records are sealed: run an older query again, or else restore the object from "
        "a copy of the bucket"
    )


def _no_answer(error: Exception) -> TailUnavailableError:
    return TailUnavailableError(
        f"cannot read the metadata store: {error}; check option etcd and that the driver reaches "
        "it, or read without includeTail"
    )
