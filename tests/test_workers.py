"""Tests of one `xdist_group` run on one worker."""

import pytest


@pytest.mark.xdist_group("one")
def test_groups_are_known_to_the_workers(request: pytest.FixtureRequest) -> None:
    """
    xdist tells the scheduler a test's group in its name: pytest 9.2 does not read what it writes.
    """
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("nothing is to be kept together: `make test` runs with --dist loadgroup")
    assert request.node.nodeid.endswith("@one")
