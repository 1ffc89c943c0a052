"""Clauses that the simulation cannot notice are left out one by one, and the tests of each notice.

Virtual time does not see what holds up the event loop, or a deadline that is too short for a large
answer; and the agents of a simulation are given their numbers, and find their
cluster made.  `tests/README.md` has the table.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driftlog_agents.cluster import prefix_watch as watching
from driftlog_agents.cluster.node_ids import NodeIds
from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.log.garbage import collector
from driftlog_agents.log.garbage import named_flush_objects as flush_names
from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_agents.process.composition import cluster_identity as identity
from tests.agents.cluster import test_node_ids
from tests.agents.cluster import test_watch as test_watching
from tests.agents.foundation import test_start_retry as test_patience
from tests.agents.log import test_hand_over
from tests.agents.log.garbage import test_unreferenced_objects as test_garbage
from tests.contract import test_disk
from tests.simulation.unavailable_planted import moved_without_a_probe

Plant = Callable[[pytest.MonkeyPatch], None]
Notices = Callable[[Path, pytest.MonkeyPatch], None]


async def _on_the_loop(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


def records_decoded_on_the_loop(patch: pytest.MonkeyPatch) -> None:
    """The collector decodes flush records in the event loop's own turn."""

    async def read(reads: Any, session_id: str, unknown_keys: Any, _: Any) -> Any:
        return await flush_names.read_names(reads, session_id, unknown_keys, _on_the_loop)

    patch.setattr(collector, "read_names", read)


def one_deadline_for_all_reads(patch: pytest.MonkeyPatch) -> None:
    """The cluster watch gives a read ten seconds, however large the answer is."""
    patch.setattr(watching, "_LONGEST_TIMEOUT_S", watching._TIMEOUT_S)


def read_in_one_turn(patch: pytest.MonkeyPatch) -> None:
    """The cluster watch takes everything that it has read in one turn of the event loop."""
    original = ClusterView.resetting

    def resetting(self: ClusterView, *read: Any) -> Iterator[None]:
        return iter(list(original(self, *read))[:0])

    patch.setattr(ClusterView, "resetting", resetting)


def folders_synced_on_the_loop(patch: pytest.MonkeyPatch) -> None:
    """The disk syncs its folders in the event loop's own turn."""

    async def run(_: PosixDisk, fn: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0.002)
        return fn(*args)

    patch.setattr(PosixDisk, "_run", run)


def node_ids_kept_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A node id stays in the metadata store when nothing uses it any more."""

    async def nothing(_: NodeIds, __: int) -> None:
        return None

    patch.setattr(NodeIds, "collect", nothing)


def marked_anew_among_objects(patch: pytest.MonkeyPatch) -> None:
    """A cluster is made under a prefix that has objects and no cluster.json."""

    async def nothing(_: Any, __: str) -> None:
        return None

    patch.setattr(identity, "_check_empty", nothing)


def _garbage(path: Path, _: pytest.MonkeyPatch) -> None:
    test = "test_records_are_read_one_session_after_the_other_and_decoded_off_the_event_loop"
    world = test_garbage.World(path)
    try:
        asyncio.run(getattr(test_garbage, test)(world))
    finally:
        world.disk.close()


def _long_reads(_: Path, __: pytest.MonkeyPatch) -> None:
    test_watching.test_a_read_that_takes_long_is_given_longer_until_it_is_answered()


def _large_reads(_: Path, __: pytest.MonkeyPatch) -> None:
    test_watching.test_a_large_read_does_not_hold_up_the_event_loop()


def _slow_syncs(path: Path, patch: pytest.MonkeyPatch) -> None:
    test = test_disk.test_a_disk_whose_fsync_takes_long_does_not_stop_the_event_loop
    asyncio.run(test(path, patch))


def _node_ids(_: Path, __: pytest.MonkeyPatch) -> None:
    asyncio.run(test_node_ids.test_ids_of_directories_that_are_gone_are_given_to_others())


def _objects_without_a_mark(_: Path, __: pytest.MonkeyPatch) -> None:
    test_patience.test_no_cluster_is_made_where_there_are_objects("nothing")


def _hand_overs(_: Path, __: pytest.MonkeyPatch) -> None:
    test_hand_over.test_while_the_bucket_hangs_each_partition_stays_where_it_is_served()


# A notice that makes requests and sends none would not notice what is left out of them.
@pytest.mark.filterwarnings("error:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize(
    ("plant", "notices"),
    [
        (records_decoded_on_the_loop, _garbage),
        (one_deadline_for_all_reads, _long_reads),
        (read_in_one_turn, _large_reads),
        (folders_synced_on_the_loop, _slow_syncs),
        (node_ids_kept_for_ever, _node_ids),
        (marked_anew_among_objects, _objects_without_a_mark),
        (moved_without_a_probe, _hand_overs),
    ],
    ids=lambda of: of.__name__.strip("_"),
)
def test_what_is_left_out_is_noticed(
    plant: Plant, notices: Notices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The test of a clause fails without it, by what it asserts.
    """
    plant(monkeypatch)

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        notices(tmp_path, monkeypatch)
