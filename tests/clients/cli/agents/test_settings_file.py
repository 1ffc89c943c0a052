"""A file of settings is read as TOML says, and each fault names its line."""

import re

import pytest

from driftlog.cli.agents.settings_file import (
    LARGEST_BYTES,
    FileValue,
    SettingsFileError,
    read_settings,
)

FILE = """\
# an agent
store = "s3://bucket/prefix"
listener = [  # two
  "PLAINTEXT://127.0.0.1:9092",

  "OUTSIDE://127.0.0.1:9192",
]
log.retention.ms = 604_800_000
"max.connections" = 5
max.connections.per.ip = 4
auto.create.topics.enable = true

[group.consumer]
rack = '''
a
b'''
session.timeout.ms = 45000
[offsets]
retention.minutes = 1.5
"""


def test_each_value_has_its_name_and_its_line() -> None:
    """
    Dotted, quoted or below a table, and after values of several lines.
    """
    assert [
        FileValue("store", "s3://bucket/prefix", 2),
        FileValue("listener", ("PLAINTEXT://127.0.0.1:9092", "OUTSIDE://127.0.0.1:9192"), 3),
        FileValue("log.retention.ms", "604800000", 8),
        FileValue("max.connections", "5", 9),
        FileValue("max.connections.per.ip", "4", 10),
        FileValue("auto.create.topics.enable", "true", 11),
        FileValue("group.consumer.rack", "a\nb", 14),
        FileValue("group.consumer.session.timeout.ms", "45000", 17),
        FileValue("offsets.retention.minutes", "1.5", 19),
    ] == read_settings(FILE)


def test_line_ends_of_windows_count_once() -> None:
    """
    A file that was edited elsewhere has the same lines.
    """
    assert read_settings(FILE) == read_settings(FILE.replace("\n", "\r\n"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dir = ?\n", "not TOML: .*line 1"),
        ('a = 1\nstore = "s3://b\n', "not TOML: .*line 2"),
        ("dir = 1\ndir = 2", "not TOML"),
        ("max.connections = 1\nmax.connections.per.ip = 1", "put both in quotes"),
        ('"a.b" = 1\na.b = 2', "line 2: a.b is in line 1, too"),
        ("\nsince = 2026-11-26", "line 2: a setting is a text"),
        ("a = 1\nlistener = [['b']]", "line 2: a setting is a text"),
        ("listener = [true]", "line 1: a setting is a text"),
        ("[[listener]]\na = 1", "line 1: a setting is a text"),
        ("a = {b = {}}", "line 1: a setting is a text"),
        ("#" * (LARGEST_BYTES + 1), "larger than"),
        ("a = " + "[" * 100_000, "not TOML"),
    ],
)
def test_what_is_no_file_of_settings_is_refused_with_its_line(text: str, said: str) -> None:
    """
    An operator finds the fault without a search.
    """
    with pytest.raises(SettingsFileError) as refused:
        read_settings(text)

    assert re.search(said, str(refused.value))
