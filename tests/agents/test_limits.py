"""docs/limits.md names each limit with its default."""

import re

from driftlog_agents.limits import DEFINITIONS, FIELDS, Refusals
from tests.support.components import REPOSITORY


def test_the_page_has_each_limit_with_its_default() -> None:
    """
    And what happens beyond it.
    """
    page = (REPOSITORY / "docs" / "limits.md").read_text()
    rows = {
        name: (default, beyond.strip())
        for name, default, beyond in re.findall(
            r"^\| `([a-z.]+)` \| ([^|]*) \| [^|]* \| ([^|]*)\|$", page, re.MULTILINE
        )
    }

    assert {name: d.default or "none" for name, d in DEFINITIONS.items()} == {
        name: rows[name][0] for name in DEFINITIONS if name in rows
    }
    assert [] == [name for name in DEFINITIONS if not rows[name][1]]


def test_each_limit_is_counted_from_the_start() -> None:
    """
    A dashboard finds the series before anything was refused.
    """
    refusals = Refusals()
    refusals.count("queued.max.requests")

    assert {*FIELDS, "group.max.session.timeout.ms"} == set(refusals.counts)
    assert 1 == refusals.counts["queued.max.requests"]
