"""Every guarded transaction of a bulk import of a topic, from its key to the topic's.

    begin ──▶ renew, renew, … ──▶ put partitions ──▶ publish: the topic's key in, the import's out
                  │
                  └──▶ abandon: a tombstone in, the import's key and the partitions' out

1. Publish and abandon need the import's key and remove it: one of them happens, once.
2. Partitions are put while the import's key is there, so no late copy overwrites a key that an
   agent has claimed.  Before the publication no agent claims them: there is no topic.
3. A renewal writes the same value: the key's revision says that the importer lives.

All of them may be repeated after a lost answer.

Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from driftlog_metadata.schema.codec import (
    encode_leader,
    encode_partition_state,
    encode_tombstone,
    encode_topic,
)
from driftlog_metadata.schema.keys import (
    deleted_key,
    import_key,
    leader_key,
    leaders_prefix,
    partition_key,
    partitions_prefix,
    topic_key,
)
from driftlog_metadata.schema.model import Leader, PartitionState, Topic, TopicPartition
from driftlog_metadata.stores.store import (
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Get,
    KeyValue,
    ModRevisionIs,
    Operation,
    Put,
)
from driftlog_metadata.transactions.session_transactions import Txn

IMPORT_EPOCH: Final = 0
"""Leader epoch of imported records; the first leader claims the next one."""

_PARTITIONS: Final = 50
"""In one transaction, with two keys each."""


def begin_import(topic: Topic, session: Compare) -> Txn:
    """Create the import's key.  Otherwise-reads: it, to recognise an attempt whose answer was
    lost."""
    key = import_key(topic.topic_id)
    return Txn(
        compares=(CreateRevisionIs(key, 0), session),
        then=(Put(key, encode_topic(topic)),),
        otherwise=(Get(key),),
    )


def renew_import(kv: KeyValue) -> Txn:
    """Write the import's key again, as it was read."""
    return Txn(compares=(ModRevisionIs(kv.key, kv.mod_revision),), then=(Put(kv.key, kv.value),))


def put_partitions(
    kv: KeyValue, states: Mapping[TopicPartition, PartitionState], session: Compare
) -> Iterator[Txn]:
    """The keys of the partitions that have records.  *kv*: the import's key."""
    there = CreateRevisionIs(kv.key, kv.create_revision)
    all_states = list(states.items())
    for first in range(0, len(all_states), _PARTITIONS):
        puts: list[Operation] = []
        for tp, state in all_states[first : first + _PARTITIONS]:
            puts.append(Put(leader_key(tp), encode_leader(Leader(None, IMPORT_EPOCH))))
            puts.append(Put(partition_key(tp), encode_partition_state(state)))
        yield Txn(compares=(there, session), then=tuple(puts))


def publish_import(kv: KeyValue, topic: Topic, session: Compare) -> Txn:
    """Make the import the topic.  *kv*: the import's key.

    Otherwise-reads: the topic's key, which may be another one's; the import's key.
    """
    key = topic_key(topic.name)
    return Txn(
        compares=(
            CreateRevisionIs(kv.key, kv.create_revision),
            CreateRevisionIs(key, 0),
            CreateRevisionIs(deleted_key(topic.topic_id), 0),
            session,
        ),
        then=(Put(key, encode_topic(topic)), Delete(kv.key)),
        otherwise=(Get(key), Get(kv.key)),
    )


def abandon_import(kv: KeyValue, topic: Topic) -> Txn:
    """End the import for good, unless it was renewed after *kv*, its key, was read: a tombstone has
    its objects collected.  Otherwise-reads: the import's key."""
    return Txn(
        compares=(ModRevisionIs(kv.key, kv.mod_revision),),
        then=(
            Delete(kv.key),
            Put(deleted_key(topic.topic_id), encode_tombstone(topic)),
            DeletePrefix(leaders_prefix(topic.topic_id)),
            DeletePrefix(partitions_prefix(topic.topic_id)),
        ),
        otherwise=(Get(kv.key),),
    )
