"""What the README says of topic configs is what they say of themselves."""

import re
from pathlib import Path
from typing import Final

from driftlog_agents.configs.topic import TOPIC_CONFIGS

_README: Final = Path(__file__).resolve().parents[2] / "README.md"
_ROW: Final = re.compile(r"\| (do what they say|are kept, [^|]+|cannot be [^|]+) \| (.*) \|")
_NAME: Final = re.compile(r"`([a-z0-9.]+)`")
_ENDS: Final = {
    "it does nothing until this version of driftlog can do it.": "are kept, and do nothing yet",
    "it changes nothing here.": "are kept, and mean nothing here",
    "it cannot be turned on.": "cannot be turned on",
}


def test_the_readme_says_of_each_topic_config_what_it_says_of_itself() -> None:
    """
    Each config is in one row of the table, the one that its documentation ends in.
    """
    rows = (_ROW.fullmatch(line) for line in _README.read_text().splitlines())
    said = [(name, row[1]) for row in rows if row for name in _NAME.findall(row[2])]
    expected = {
        name: next(
            (row for end, row in _ENDS.items() if config.documentation.endswith(end)),
            "do what they say",
        )
        for name, config in TOPIC_CONFIGS.items()
    }

    assert sorted(expected.items()) == sorted(said)
