"""Writes the keys of a restored cluster into its metadata store.

    /restore ──▶ partitions, topics, tombstones, groups, producer ids ──▶ finished: /cluster

Each run of the restore writes its name into ``/restore``, and every transaction compares it: of two
runs, the one that began last goes on.  All transactions may be repeated.  ``/cluster`` is written
last: no agent starts before.

Shell.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from driftlog_agents.foundation.retry import NO_ANSWER, Retry
from driftlog_metadata.schema.codec import (
    decode_at,
    decode_leader,
    decode_restore,
    encode_cluster,
    encode_leader,
    encode_partition_state,
    encode_producer_id_block,
    encode_restore,
    encode_tombstone,
    encode_topic,
)
from driftlog_metadata.schema.keys import (
    CLUSTER_KEY,
    CONFIGS_PREFIX,
    GROUPS_PREFIX,
    PRODUCER_IDS_KEY,
    RESTORE_KEY,
    ROOT,
    deleted_key,
    leader_key,
    parse_leader_key,
    parse_partition_key,
    partition_key,
    topic_key,
)
from driftlog_metadata.schema.model import (
    Cluster,
    Leader,
    PartitionState,
    ProducerIdBlock,
    Restore,
    Topic,
    TopicPartition,
)
from driftlog_metadata.stores.errors import DeclinedError, FencedError
from driftlog_metadata.stores.store import (
    MAX_TXN_BYTES,
    MAX_TXN_OPS,
    Compare,
    CreateRevisionIs,
    Delete,
    Get,
    MetadataStore,
    Operation,
    Put,
    TxnResult,
    ValueIs,
)

_RETRY: Final = Retry(wait_s=0.2, longest_wait_s=5.0, timeout_s=30.0, attempts=8, errors=NO_ANSWER)
_OTHER_RUN: Final = "another run of this restore has begun, and goes on"
_PUT_BYTES: Final = MAX_TXN_BYTES // 4

T = TypeVar("T")


class NotEmptyError(FencedError):
    """The metadata store has another cluster's keys."""


class MetadataWrites:
    """See the module."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self.restore: Restore | None = None

    async def find(self) -> Restore | None:
        """The restore that the store has; None: the store is empty.

        Raises:
            NotEmptyError: it has other keys, and no restore.
        """
        _, kvs = await _asked(lambda: self._metadata.get_prefix(f"{ROOT}/"))
        for kv in kvs:
            if kv.key == RESTORE_KEY:
                self.restore = decode_at(kv.key, kv.value, decode_restore)
                return self.restore
        if kvs:
            raise NotEmptyError(
                f"the metadata store is not empty: it has {kvs[0].key}.  A restore needs a new one "
                "(an empty --dir, or an etcd without keys of driftlog)"
            )
        return None

    async def begin(self, restore: Restore) -> None:
        """Write ``/restore`` of this run over that of the run before, if there was one.

        Raises:
            FencedError: another run was faster.
        """
        value = encode_restore(restore)
        compares: list[Compare]
        if self.restore is None:
            compares = [CreateRevisionIs(RESTORE_KEY, 0), CreateRevisionIs(CLUSTER_KEY, 0)]
        else:
            compares = [ValueIs(RESTORE_KEY, encode_restore(self.restore))]
        result = await self._txn(compares, [Put(RESTORE_KEY, value)], [Get(RESTORE_KEY)])
        if not result.succeeded and [kv.value for kv in result.reads[0]] != [value]:
            raise FencedError(_OTHER_RUN)
        self.restore = restore

    async def confirm(self) -> None:
        """No other run has begun.  What was read before has then nothing of the new cluster: no
        other run was finished.

        Raises:
            FencedError: another run has begun.
        """
        assert self.restore is not None
        kv = await _asked(lambda: self._metadata.get(RESTORE_KEY))
        if kv is None or kv.value != encode_restore(self.restore):
            raise FencedError(_OTHER_RUN)

    async def topics(self, live: Iterable[Topic], deleted: Iterable[Topic]) -> None:
        """Write topics, and the tombstones by which the collector deletes the others' objects."""
        puts = [Put(topic_key(topic.name), encode_topic(topic)) for topic in live]
        puts += [Put(deleted_key(topic.topic_id), encode_tombstone(topic)) for topic in deleted]
        await self._puts(puts)

    async def groups(self, values: Mapping[str, bytes]) -> None:
        """Write the keys of groups, as a snapshot has them."""
        await self._puts([Put(f"{GROUPS_PREFIX}{key}", value) for key, value in values.items()])

    async def configs(self, values: Mapping[str, bytes]) -> None:
        """Write the keys of configs of brokers and groups, as a snapshot has them."""
        await self._puts([Put(f"{CONFIGS_PREFIX}{key}", value) for key, value in values.items()])

    async def producer_ids(self, first: int, size: int) -> None:
        """Give out no producer id below ``first + size``."""
        block = ProducerIdBlock(first_producer_id=first, size=size, node_id=0)
        await self._puts([Put(PRODUCER_IDS_KEY, encode_producer_id_block(block))])

    async def partition(
        self, tp: TopicPartition, leader_epoch: int, state: PartitionState | None
    ) -> None:
        """Write the keys of a partition without a leader, if the partition's key is not there.
        *state* None: the partition is offline."""
        leader = Put(leader_key(tp), encode_leader(Leader(None, leader_epoch)))
        then: list[Operation] = [leader]
        if state is not None:
            then.append(Put(partition_key(tp), encode_partition_state(state)))
        await self._write([CreateRevisionIs(partition_key(tp), 0)], then, partition_key(tp))

    async def keys(self) -> tuple[set[TopicPartition], dict[TopicPartition, int]]:
        """The partitions that are restored, and those that are offline with their leader epochs.
        One that an agent leads is neither, if its key is lost.

        Raises:
            CorruptError: a key.
        """
        _, leaders = await _asked(lambda: self._metadata.get_prefix(f"{ROOT}/leaders/"))
        _, states = await _asked(lambda: self._metadata.get_prefix(f"{ROOT}/partitions/"))
        done = {parse_partition_key(kv.key) for kv in states}
        offline: dict[TopicPartition, int] = {}
        for kv in leaders:
            tp, leader = parse_leader_key(kv.key), decode_at(kv.key, kv.value, decode_leader)
            if tp not in done and leader.session_id is None:
                offline[tp] = leader.leader_epoch
        return done, offline

    async def finish(self, restore: Restore, cluster: Cluster) -> None:
        """Write ``/cluster``: agents may start."""
        assert self.restore is not None
        value = encode_cluster(cluster)
        before, after = encode_restore(self.restore), encode_restore(restore)
        compares = (ValueIs(RESTORE_KEY, before), CreateRevisionIs(CLUSTER_KEY, 0))
        then = [Put(RESTORE_KEY, after), Put(CLUSTER_KEY, value)]
        result = await self._txn(compares, then, [Get(CLUSTER_KEY)])
        if not result.succeeded and [kv.value for kv in result.reads[0]] != [value]:
            raise FencedError(_OTHER_RUN)
        self.restore = restore

    async def is_finished(self) -> bool:
        """Whether agents may have started."""
        return await _asked(lambda: self._metadata.get(CLUSTER_KEY)) is not None

    async def discard(self) -> None:
        """Remove ``/restore``: the collector may delete what the restore has listed.

        Raises:
            FencedError: another run has begun.
        """
        assert self.restore is not None
        compares = [ValueIs(RESTORE_KEY, encode_restore(self.restore))]
        result = await self._txn(compares, [Delete(RESTORE_KEY)], [Get(RESTORE_KEY)])
        if not result.succeeded and result.reads[0]:
            raise FencedError(_OTHER_RUN)

    # ── Transactions ──

    async def _puts(self, puts: Sequence[Put]) -> None:
        some: list[Operation] = []
        size = 0
        for put in puts:
            one = len(put.key) + len(put.value)
            if some and (len(some) == MAX_TXN_OPS or size + one > _PUT_BYTES):
                await self._write([], some)
                some, size = [], 0
            some.append(put)
            size += one
        if some:
            await self._write([], some)

    async def _write(
        self, compares: Sequence[Compare], then: Sequence[Operation], made: str = ""
    ) -> None:
        """*made*: a key that is there if an attempt without an answer was applied."""
        assert self.restore is not None
        guard = ValueIs(RESTORE_KEY, encode_restore(self.restore))
        reads = [Get(RESTORE_KEY), *([Get(made)] if made else [])]
        result = await self._txn([guard, *compares], then, reads)
        if result.succeeded:
            return
        ours = [kv.value for kv in result.reads[0]] == [guard.value]
        if not ours or not made or not result.reads[1]:
            raise FencedError(_OTHER_RUN)

    async def _txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        return await _asked(lambda: self._metadata.txn(compares, then, otherwise))


async def _declined(error: Exception) -> None:
    if isinstance(error, DeclinedError):
        raise error


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    return await _RETRY.run(ask, _declined)
