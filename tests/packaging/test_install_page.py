"""docs/install.md names every package that an agent's environment gets."""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.components import REPOSITORY

PAGE = REPOSITORY / "docs" / "install.md"


def needed(name: str, extra: str = "") -> Iterator[str]:
    """What *name* requires on this machine, directly or not."""
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield canonicalize_name(requirement.name)
            yield from needed(requirement.name)


def test_the_table_has_a_purpose_for_each_package_of_the_extra_agent() -> None:
    """
    Also those that others need; and no other one.
    """
    cells = re.findall(r"^\| ([^|]+) \| \d+ \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    listed = {name.strip() for cell in cells for name in cell.split(",")}

    assert {"driftlog", *needed("driftlog", "agent")} == listed
