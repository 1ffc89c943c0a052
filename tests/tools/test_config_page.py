"""docs/configs.md says of each start option and config what it says of itself."""

import re

from driftlog.cli import parser
from driftlog.cli.common.parsers import commands_of
from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS, BrokerSettings
from driftlog_agents.configs.broker import BROKER_CONFIGS
from driftlog_agents.configs.start_configs import with_configs
from driftlog_agents.configs.topic import TOPIC_CONFIGS
from tools.config_page import PAGE, page

RETENTION = ("retention.ms", "retention.bytes")


def test_the_page_is_up_to_date() -> None:
    """
    Else: ``python -m tools.config_page``.
    """
    assert page() == PAGE.read_text()


def test_each_config_has_a_row_with_what_it_does() -> None:
    """
    Name, default, values and text; none is empty.
    """
    of_agents = page().partition("## Configs of an agent")[2].partition("## Configs of topics")[0]
    rows = [row.split(" | ") for row in of_agents.splitlines() if row.startswith("| `")]

    assert [f"| `{name}`" for name in sorted(STARTUP_CONFIGS)] == [row[0] for row in rows]
    assert [] == [
        row[0] for row in rows if len(row) != 5 or not all(cell.strip(" |") for cell in row)
    ]


def test_each_option_of_an_agent_has_a_row_with_its_names() -> None:
    """
    The flag, the name in the file, the variable, the default and the text; none is empty.
    """
    options = page().partition("## Start options")[2].partition("## Configs of an agent")[0]
    rows = [row.split(" | ") for row in options.splitlines() if row.startswith("| `")]
    run = commands_of(commands_of(parser())["agent"])["run"]
    flags = set(re.findall(r"^ +(?:-h, )?(--[a-z-]+)", run.format_help(), re.MULTILINE))

    assert flags - {"--help", "--config", "--config-file"} == {row[0].strip("| `") for row in rows}
    assert [] == [
        row[0] for row in rows if len(row) != 5 or not all(cell.strip(" |") for cell in row)
    ]


def test_each_config_of_a_topic_says_whether_it_has_an_effect() -> None:
    """
    What seals, what admits and what expires works.
    """
    _, _, of_topics = page().partition("## Configs of topics")
    rows = [row.split(" | ") for row in of_topics.splitlines() if row.startswith("| `")]
    here = {row[0].strip("| `"): row[3] for row in rows}

    assert sorted(TOPIC_CONFIGS) == list(here)
    assert {"works", "no meaning", "cannot be turned on"} == set(here.values())
    assert "works" == here["cleanup.policy"]
    assert ["works"] * 4 == [here[name] for name in ("segment.ms", "max.message.bytes", *RETENTION)]


def test_a_default_that_the_page_names_is_the_agents() -> None:
    """
    To set a config to it changes nothing.
    """
    before = BrokerSettings()
    by_file_limit = {"max.connections"}
    for name in STARTUP_CONFIGS.keys() - by_file_limit:
        default = BROKER_CONFIGS[name].default
        if default is None:  # not set
            continue
        after = with_configs(before, [f"{name}={default}"])
        assert (name, before.limits, before.groups) == (name, after.limits, after.groups)
        assert before.message_max_bytes == after.message_max_bytes
        assert {name} == after.given
