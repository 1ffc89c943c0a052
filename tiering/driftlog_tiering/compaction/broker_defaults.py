"""The configs of all brokers that topics without their own inherit, for a job: `broker_defaults`.

    newest group snapshot ──▶ configs of all brokers ──▶ their names as configs of topics

Agents put a snapshot within a minute of a change of such a config; a cluster without groups and
configs has none.  A job does not see what agents were started with, nor the configs of one broker.

Shell.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from driftlog_metadata.schema.codec import decode_configs
from driftlog_tiering.compaction.topic_policy import BROKER_NAMES
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.group_snapshot import decode_group_snapshot
from driftlog_tiering.stores.object_store import ObjectStore

_ALL_BROKERS: Final = "brokers"


@dataclass(frozen=True, slots=True)
class BrokerDefaults:
    """What the snapshot at *key* has; without a key there is no snapshot."""

    key: str = ""
    configs: Mapping[str, str] = field(default_factory=dict)
    """By the names that topics have for them."""


async def broker_defaults(
    store: ObjectStore, cluster_id: str, known: BrokerDefaults | None = None
) -> BrokerDefaults:
    """The newest defaults.

    Args:
        known: is returned if no snapshot is newer.

    Raises:
        NotFoundError: the snapshot was replaced meanwhile; repeat it.
        CorruptError: the snapshot, or the configs in it, are damaged or of a newer format.
        UnavailableError, OutcomeUnknownError, TimeoutError: the store.
    """
    key = await _newest_key(store, cluster_id)
    if known is not None and known.key == key:
        return known
    if not key:
        return BrokerDefaults()
    value = decode_group_snapshot(await store.get(key)).configs.get(_ALL_BROKERS)
    found = {} if value is None else decode_configs(value)
    names = {theirs: ours for ours, theirs in BROKER_NAMES.items()}
    return BrokerDefaults(key, {names[name]: text for name, text in found.items() if name in names})


async def _newest_key(store: ObjectStore, cluster_id: str) -> str:
    async for page in store.list(layout.groups_prefix(cluster_id)):
        for info in page.objects:
            with suppress(ValueError):  # an unrecognised object
                layout.parse_group_snapshot_key(info.key)
                return info.key
    return ""
