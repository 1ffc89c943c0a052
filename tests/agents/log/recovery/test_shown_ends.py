"""If it failed: offsets of unnamed flush objects would be given to other records after a loss."""

from driftlog_agents.log.recovery.shown_ends import ShownEnds
from driftlog_tiering.stores.object_store import ObjectInfo
from tests.agents.log.consolidation.test_policy import PLACES, footer_of

A, B = PLACES[:2]


def test_the_largest_end_and_the_newest_epoch_of_all_objects_count() -> None:
    """
    Perhaps of different objects; a probe has none.
    """
    shown = ShownEnds()
    shown.add("1", footer_of([(A, 3, 4, 10), (B, 0, 1, 10)]))  # epochs: base offset % 5
    shown.add("2", footer_of([(A, 10, 5, 10)]))
    shown.add("probe", None)

    assert ((15, 3), (1, 0)) == (shown.of(A), shown.of(B))
    assert (0, -1) == ShownEnds().of(A)


def test_each_object_is_read_once() -> None:
    """
    Also one that is no flush object.
    """
    shown = ShownEnds()
    shown.add("1", None)
    infos = [ObjectInfo(key, 1, 0) for key in ("1", "2")]

    assert [infos[1]] == shown.unread(infos)
