"""An agent commits on a look that is too old: a restored cluster has not what it acknowledges."""

from driftlog_agents.cluster.bucket_ownership import VALID_MS, BucketOwnership


def test_nothing_holds_before_the_first_look() -> None:
    """
    An agent that has just started looks before its first commit.
    """
    ownership = BucketOwnership()

    assert not ownership.holds(0.0)
    assert ownership.is_due(0.0)


def test_a_look_holds_for_a_minute_from_when_it_was_sent() -> None:
    """
    And is due again after half of it, however late its answer came.
    """
    ownership = BucketOwnership()
    ownership.found_own(1_000.0)

    assert ownership.holds(1_000.0 + VALID_MS - 1)
    assert not ownership.holds(1_000.0 + VALID_MS)
    assert not ownership.is_due(1_000.0 + VALID_MS / 2 - 1)
    assert ownership.is_due(1_000.0 + VALID_MS / 2)


def test_the_answer_of_an_older_look_shortens_nothing() -> None:
    """
    Two looks may be under way, and be answered in any order.
    """
    ownership = BucketOwnership()
    ownership.found_own(5_000.0)
    ownership.found_own(1_000.0)

    assert ownership.holds(1_000.0 + VALID_MS)


def test_another_cluster_is_final() -> None:
    """
    A look that was sent before may be answered later.
    """
    ownership = BucketOwnership()
    ownership.found_other("b")
    ownership.found_own(1_000.0)
    ownership.found_other("c")

    assert not ownership.holds(1_000.0)
    assert not ownership.is_due(1_000.0)
    assert "b" == ownership.other
