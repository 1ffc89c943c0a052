"""A restore forgets a kind of key of the metadata store, and no page says so."""

import re
from typing import Final
from uuid import UUID

from driftlog_agents.groups.offsets import Committed
from driftlog_agents.groups.storage_format import encode_page
from driftlog_metadata.schema import keys
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.group_snapshot import GroupSnapshot, encode_group_snapshot
from tests.agents.log.lives import on_virtual_time
from tests.agents.restore.lost_cluster import Lost
from tests.support.clusters import AUTHOR

_OF_AGENTS: Final = {
    "agents",
    "flushes",
    "heads",
    "node_ids",
    "releases",
    "secrets",
    "sessions",
}
"""Do not come back: each is of an agent of the old cluster, and agents write their own."""


_BEGUN: Final = {"imports"}
"""Do not come back: the importer's topic does not exist yet."""


def _kinds(text: str) -> set[str]:
    return set(re.findall(rf"{keys.ROOT}/(\w+)", text))


@on_virtual_time
async def test_every_kind_of_key_comes_back_but_those_of_agents() -> None:
    """
    A kind of key that is new in the keyspace is restored, or named here and in docs/restore.md.
    """
    world = Lost(t=1)
    life = await world.begin()
    assert "committed" == await life.produce(b"v").answer()
    gone = UUID(int=99)
    mark = bucket_files.DeletedTopic("gone", gone, 0)
    await world.bucket.put(layout.deleted_key("gone", gone), [bucket_files.encode_deleted(mark)])
    page = encode_page({0: Committed(offset=1)}, "n")
    values = {"g": b"{}", f"g/offsets/{world.topics['t'].topic_id}/0": page}
    snapshot = GroupSnapshot(AUTHOR.cluster_id, 9, values, {"brokers": b"{}"})
    key = layout.group_snapshot_key(AUTHOR.cluster_id, 9)
    await world.bucket.put(key, [encode_group_snapshot(snapshot)])
    life.kill()
    store = world.lose_everything()

    await world.restore()

    assert keys.__doc__ is not None
    keyspace, reserved, _ = keys.__doc__.partition("Reserved for features")
    assert reserved
    assert _kinds(keyspace) - _OF_AGENTS - _BEGUN == {
        kind for kv in store.snapshot() for kind in _kinds(kv.key)
    }
