"""Bugs to be planted about metadata stores that are not ours: see `planted`.

Evidence overlaps, so that one kind alone is often not missed: answers and watches show the same
lower revision, and an empty store has no cluster's key either.  Left out together they are.
The collector's confirmation has no bug of its own here: its reads go through the witness, and
`tests/agents/health/test_metadata_store_monitor.py` shows what it would delete without.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from driftlog_agents.health.metadata_store_monitor import MetadataStoreMonitor
from driftlog_metadata.schema.keys import CLUSTER_KEY
from driftlog_metadata.stores.store import Get, ValueIs
from driftlog_metadata.stores.watches import History
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_metadata.transactions.session_transactions import Txn
from driftlog_metadata.witness import witness
from driftlog_metadata.witness.witness import StoreWitness
from tests.simulation.planted import Plant


def _nothing(*_: Any) -> None:
    return None


def older_revisions_believed(patch: pytest.MonkeyPatch) -> None:
    """An answer below what was seen is believed, and a watch waits for what has been."""
    first_match = History.first_match

    def wait(self: History, prefix: str, start_revision: int) -> Any:
        return first_match(self, prefix, min(start_revision, self.revision + 1))

    patch.setattr(StoreWitness, "answered", lambda self, _, revision: self.saw(revision))
    patch.setattr(History, "first_match", wait)


def lost_commits_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """A head below what its own session committed is taken for the end of a session."""
    patch.setattr(StoreWitness, "read_head", _nothing)


def other_clusters_believed(patch: pytest.MonkeyPatch) -> None:
    """Nobody minds what the cluster's key says when it is read."""
    patch.setattr(StoreWitness, "read_cluster", _nothing)


def heads_read_for_commits_alone(patch: pytest.MonkeyPatch) -> None:
    """An agent that commits nothing more does not ask for what it had committed."""

    async def ask(self: MetadataStoreMonitor) -> None:
        result = await self._store.txn((), (Get(CLUSTER_KEY),))
        self._witness.read_cluster(result.reads[0])

    patch.setattr(MetadataStoreMonitor, "_ask", ask)


def leaps_believed(patch: pytest.MonkeyPatch) -> None:
    """A revision may be any number further on."""
    patch.setattr(witness, "_LEAP", 2**62)


def begun_in_any_store(patch: pytest.MonkeyPatch) -> None:
    """Sessions and claims do not compare the cluster's key."""

    def without(build: Callable[..., Txn]) -> Callable[..., Txn]:
        def built(*arguments: Any, **options: Any) -> Txn:
            txn = build(*arguments, **options)
            mark = [c for c in txn.compares if isinstance(c, ValueIs) and c.key == CLUSTER_KEY]
            return replace(txn, compares=tuple(c for c in txn.compares if c not in mark))

        return built

    for name in ("open_session", "claim"):
        patch.setattr(transactions, name, without(getattr(transactions, name)))


STORE_LOSS_BUGS: tuple[Plant, ...] = (
    older_revisions_believed,
    lost_commits_not_noticed,
    other_clusters_believed,
    heads_read_for_commits_alone,
    leaps_believed,
    begun_in_any_store,
)
