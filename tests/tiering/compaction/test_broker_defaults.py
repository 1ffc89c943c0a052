"""If it failed: a job would drop what the configs of all brokers keep."""

import asyncio

import pytest

from driftlog_metadata.schema.codec import encode_configs
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.compaction.broker_defaults import BrokerDefaults, broker_defaults
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.group_snapshot import GroupSnapshot, encode_group_snapshot
from tests.support.memory_object_store import MemoryObjectStore


def snapshot(revision: int, **values: bytes) -> bytes:
    """With configs of brokers."""
    return encode_group_snapshot(GroupSnapshot("c", revision, {"g": b"x"}, values))


def test_the_newest_snapshot_counts_under_the_names_of_topics() -> None:
    """
    Without a snapshot there are none; configs of one broker and of a server alone do not count; a
    snapshot that cannot be read is none that says nothing.
    """

    async def main() -> None:
        store = MemoryObjectStore(lambda: 0)
        assert BrokerDefaults() == await broker_defaults(store, "c")
        await store.put(layout.group_snapshot_key("c", 1), [snapshot(1)])
        assert {} == (await broker_defaults(store, "c")).configs
        await store.put(
            layout.group_snapshot_key("c", 5),
            [
                snapshot(
                    5,
                    brokers=encode_configs(
                        {"log.cleanup.policy": "compact", "max.connections": "7"}
                    ),
                    **{"brokers/1": encode_configs({"log.retention.ms": "1"})},
                )
            ],
        )
        found = await broker_defaults(store, "c")
        assert {"cleanup.policy": "compact"} == found.configs
        assert found is await broker_defaults(store, "c", found)
        assert BrokerDefaults() == await broker_defaults(store, "d", found)
        await store.put(layout.group_snapshot_key("c", 6), [snapshot(6, brokers=b"?")])
        with pytest.raises(CorruptError):
            await broker_defaults(store, "c", found)

    asyncio.run(main())
