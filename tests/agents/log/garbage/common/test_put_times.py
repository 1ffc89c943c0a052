"""
If this fails, an object with a time in the future is never collected, or one is collected before
its grace is over.
"""

from driftlog_agents.log.garbage.common.put_times import PutTimes
from driftlog_metadata.schema.grace import Grace
from driftlog_tiering.stores.object_store import Listing, ObjectInfo

GRACE = Grace()


def page(now_ms: int, *put_ms: int) -> Listing:
    return Listing(tuple(ObjectInfo(f"o{n}", 1, ms) for n, ms in enumerate(put_ms)), now_ms)


def times(found: Listing) -> list[int]:
    return [info.modified_ms for info in found.objects]


def test_a_time_within_a_grace_of_the_stores_clock_counts() -> None:
    """
    Nodes of one store have clocks that differ a little.
    """
    listed = page(10, 0, 10 + GRACE.ms)

    assert (listed, None) == PutTimes(GRACE).corrected(listed)


def test_an_object_put_in_the_future_counts_from_its_first_listing() -> None:
    """
    Later listings do not begin its grace again; the first such object is told, and no other.
    """
    put_times = PutTimes(GRACE)
    first, told = put_times.corrected(page(10, 5, 11 + GRACE.ms))
    later, again = put_times.corrected(page(20, 5, 21 + GRACE.ms, 10**15))

    assert ([5, 10], "o1") == (times(first), told and told.key)
    assert ([5, 10, 20], None) == (times(later), again)


def test_a_clock_that_was_wrong_at_the_first_listing_is_corrected() -> None:
    """
    The store's clock was ahead itself, and was set right since.
    """
    put_times = PutTimes(GRACE)
    put_times.corrected(page(10**9, 10**15))

    found, _ = put_times.corrected(page(50, 10**15))

    assert [50] == times(found)
