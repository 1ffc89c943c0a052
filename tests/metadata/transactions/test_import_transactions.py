"""A bulk import that ended becomes a topic, or one that is a topic is deleted."""

from dataclasses import replace
from uuid import UUID

import pytest

from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.keys import (
    deleted_key,
    import_key,
    leader_key,
    partition_key,
    session_key,
    topic_key,
)
from driftlog_metadata.schema.model import PartitionState, Topic, TopicPartition
from driftlog_metadata.stores.limits import check_txn
from driftlog_metadata.stores.store import CreateRevisionIs, Delete, KeyValue, Put, TxnResult
from driftlog_metadata.transactions.import_transactions import (
    abandon_import,
    begin_import,
    publish_import,
    put_partitions,
    renew_import,
)
from driftlog_metadata.transactions.session_transactions import Txn
from tests.support.memory_store import MemoryMetadataStore

TOPIC = Topic(name="t", topic_id=UUID(int=7), partitions=200, configs={"retention.ms": "1"})
KEY = import_key(TOPIC.topic_id)
STATES = {
    TopicPartition(TOPIC.topic_id, number): PartitionState(sealed_end=number + 1)
    for number in range(200)
}
SESSION = session_key("5e55")


class Imports:
    """A store in which a session lives and an import has begun."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore(lambda: 0)
        self.session = CreateRevisionIs(SESSION, 0)

    async def begin(self) -> "Imports":
        result = await self.store.txn((), [Put(SESSION, b"{}")])
        self.session = CreateRevisionIs(SESSION, result.revision)
        assert (await self.send(begin_import(TOPIC, self.session))).succeeded
        return self

    async def send(self, txn: Txn) -> TxnResult:
        check_txn(txn.compares, txn.then, txn.otherwise)
        return await self.store.txn(txn.compares, txn.then, txn.otherwise)

    async def kv(self, key: str = KEY) -> KeyValue:
        kv = await self.store.get(key)
        assert kv is not None
        return kv

    async def put(self, kv: KeyValue) -> list[bool]:
        """Put the keys of all partitions."""
        return [
            (await self.send(txn)).succeeded for txn in put_partitions(kv, STATES, self.session)
        ]


@pytest.fixture
async def imports() -> Imports:
    return await Imports().begin()


async def test_a_publication_replaces_the_import_by_the_topic(imports: Imports) -> None:
    """
    Its partitions have both of their keys before, in transactions that etcd takes.
    """
    kv = await imports.kv()

    assert [True] * 4 == await imports.put(kv)
    assert (await imports.send(publish_import(kv, TOPIC, imports.session))).succeeded

    assert TOPIC == decode_topic((await imports.kv(topic_key("t"))).value)
    assert await imports.store.get(KEY) is None
    for tp in STATES:
        assert await imports.store.get(leader_key(tp)) is not None
        assert await imports.store.get(partition_key(tp)) is not None


async def test_a_late_copy_puts_no_partition_of_a_published_topic(imports: Imports) -> None:
    """
    An agent leads it by then: its leader key would be another's.
    """
    kv = await imports.kv()
    await imports.put(kv)
    await imports.send(publish_import(kv, TOPIC, imports.session))

    assert [False] * 4 == await imports.put(kv)


async def test_an_abandoned_import_is_not_published(imports: Imports) -> None:
    """
    The collector deletes its objects.  Its partitions' keys are gone with it, and its configs.
    """
    kv = await imports.kv()
    await imports.put(kv)

    assert (await imports.send(abandon_import(kv, TOPIC))).succeeded
    assert not (await imports.send(publish_import(kv, TOPIC, imports.session))).succeeded

    assert [False] * 4 == await imports.put(kv)
    tombstone = await imports.store.get(deleted_key(TOPIC.topic_id))
    assert tombstone is not None
    assert replace(TOPIC, configs={}) == decode_topic(tombstone.value)
    assert all([await imports.store.get(leader_key(tp)) is None for tp in STATES])
    assert all([await imports.store.get(partition_key(tp)) is None for tp in STATES])


async def test_a_published_import_is_not_abandoned(imports: Imports) -> None:
    """
    A tombstone would delete the topic's objects.
    """
    kv = await imports.kv()
    await imports.send(publish_import(kv, TOPIC, imports.session))

    assert not (await imports.send(abandon_import(kv, TOPIC))).succeeded
    assert await imports.store.get(deleted_key(TOPIC.topic_id)) is None


async def test_a_renewed_import_is_not_abandoned_by_an_older_look(imports: Imports) -> None:
    """
    Its importer lives.  A publication does not mind the renewal.
    """
    kv = await imports.kv()

    assert (await imports.send(renew_import(kv))).succeeded
    assert not (await imports.send(abandon_import(kv, TOPIC))).succeeded
    assert (await imports.send(publish_import(kv, TOPIC, imports.session))).succeeded


async def test_a_name_that_was_taken_meanwhile_stays_the_others(imports: Imports) -> None:
    """
    A client has made the topic.  The answer has its key, by which the agent tells them apart.
    """
    kv = await imports.kv()
    await imports.store.txn((), [Put(topic_key("t"), b"other")])

    result = await imports.send(publish_import(kv, TOPIC, imports.session))

    assert not result.succeeded
    assert b"other" == result.reads[0][0].value


async def test_an_agent_whose_session_ended_begins_and_publishes_nothing(imports: Imports) -> None:
    """
    A late copy would make a topic that the next session has not read.
    """
    kv = await imports.kv()
    await imports.store.txn((), [Delete(SESSION)])
    other = Topic(name="u", topic_id=UUID(int=8), partitions=1)

    assert not (await imports.send(begin_import(other, imports.session))).succeeded
    assert not (await imports.send(publish_import(kv, TOPIC, imports.session))).succeeded
