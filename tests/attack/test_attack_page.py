"""docs/testing.md lists each attack, with its family."""

import re

from tests.attack.families import ALL
from tests.support.components import REPOSITORY


def test_the_page_names_each_attack_in_its_family() -> None:
    """
    In the order in which they are made.
    """
    page = (REPOSITORY / "docs" / "testing.md").read_text()
    _, _, table = page.partition("| family | attacks on | attacks |\n|---|---|---|\n")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.*) \|$", table, re.MULTILINE)

    expected = {family: [each.name for each in attacks] for family, attacks in ALL.items()}
    assert expected == {family: re.findall(r"`([a-z-]+)`", names) for family, names in rows}
