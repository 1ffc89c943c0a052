"""docs/configs.md says of each config that `--config` accepts what the config says of itself."""

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.broker import BROKER_CONFIGS
from driftlog_agents.process.startup_configs import STATIC, with_configs
from tools.config_page import PAGE, page


def test_the_page_is_up_to_date() -> None:
    """
    Else: ``python -m tools.config_page``.
    """
    assert page() == PAGE.read_text()


def test_each_config_has_a_row_with_what_it_does() -> None:
    """
    Name, default, values and text; none is empty.
    """
    rows = [row.split(" | ") for row in page().splitlines() if row.startswith("| `")]

    assert [f"| `{name}`" for name in sorted(STATIC)] == [row[0] for row in rows]
    assert [] == [
        row[0] for row in rows if len(row) != 4 or not all(cell.strip(" |") for cell in row)
    ]


def test_a_default_that_the_page_names_is_the_agents() -> None:
    """
    To set a config to it changes nothing.
    """
    before = BrokerSettings()
    by_file_limit = {"max.connections"}
    for name in STATIC.keys() - by_file_limit:
        default = BROKER_CONFIGS[name].default
        assert default is not None
        after = with_configs(before, [f"{name}={default}"])
        assert (name, before.limits, before.groups) == (name, after.limits, after.groups)
        assert before.message_max_bytes == after.message_max_bytes
        assert {name} == after.given
