"""An agent starts with what its file, its environment and its flags say, in this order."""

import ast
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from driftlog.cli import parser
from driftlog.cli.agents.settings_file import read_settings
from driftlog.cli.agents.start_options import start_options
from driftlog.cli.agents.start_settings import (
    OTHER_VARIABLES,
    Origin,
    Resolution,
    SettingsError,
    StartConfig,
    StartOption,
    StartSettings,
    rows,
    variable_of,
    without_settings,
)
from driftlog.cli.common.parsers import commands_of
from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS
from driftlog_agents.configs.start_configs import checked
from tests.support.components import REPOSITORY

CONFIGS = [
    StartConfig(name=name, check=partial(checked, name), default=config.default)
    for name, config in STARTUP_CONFIGS.items()
]


def options_of(*words: str) -> tuple[StartOption, ...]:
    found = parser()
    for word in words:
        found = commands_of(found)[word]
    return start_options(found)


RUN = options_of("agent", "run")


def resolved(
    file: str = "",
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    configs: Sequence[str] = (),
) -> StartSettings:
    resolution = Resolution("driftlog agent run", RUN, CONFIGS, {"agents": "`driftlog dev`"})
    resolution.add_file("a.toml", read_settings(file))
    resolution.add_environment(environment or {})
    resolution.add_flags(flags or {}, configs)
    return resolution.settings()


def faults(
    file: str = "", environment: Mapping[str, str] | None = None, configs: Sequence[str] = ()
) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as refused:
        resolved(file, environment, None, configs)
    return refused.value.faults


@pytest.mark.parametrize("layers", range(4))
def test_a_later_source_wins(layers: int) -> None:
    """
    Flags before variables before the file before the default: for options and for configs.
    """
    found = resolved(
        'rack = "file"\nnum.partitions = 2' if layers > 0 else "",
        {"DRIFTLOG_RACK": "env", "DRIFTLOG_NUM_PARTITIONS": "3"} if layers > 1 else {},
        {"rack": "flag"} if layers > 2 else {},
        ["num.partitions=4"] if layers > 2 else (),
    )
    rack, partitions = found.options["rack"], found.configs.get("num.partitions")

    assert (None, "file", "env", "flag")[layers] == rack.value
    assert ("default", "file a.toml:1", "env DRIFTLOG_RACK", "flag --rack")[layers] == str(
        rack.source
    )
    assert (None, "2", "3", "4")[layers] == (partitions and partitions.value)


def test_a_later_list_replaces_an_earlier_one() -> None:
    """
    Listeners of a file do not stay beside those of a variable.
    """
    file = 'listener = ["A://127.0.0.1:1", "B://127.0.0.1:2"]\netcd = ["http://a:1", "http://b:1"]'
    variables = {"DRIFTLOG_LISTENER": "C://127.0.0.1:3, D://127.0.0.1:4"}

    assert ["A://127.0.0.1:1", "B://127.0.0.1:2"] == resolved(file).options["listener"].value
    assert ("http://a:1", "http://b:1") == resolved(file).options["etcd"].value
    found = resolved(file, variables).options["listener"]
    assert ["C://127.0.0.1:3", "D://127.0.0.1:4"] == found.value
    assert Origin.ENVIRONMENT is found.source.origin


@pytest.mark.parametrize("file", ["log.cleanup.policy = []", 'log.cleanup.policy = ""'])
def test_topics_may_have_no_cleanup_policy(file: str) -> None:
    """
    Kafka 4 starts with an empty ``log.cleanup.policy``, and keeps all records; a file may say so.
    """
    assert ("log.cleanup.policy=",) == resolved(file).assignments


def test_every_setting_may_stand_in_the_file_and_in_a_variable() -> None:
    """
    Each option of the command line and each config, and the two give the same value.
    """
    texts = {"session-timeout-ms": "7000", "new-cluster-grace-ms": "5000", "log-level": "debug"}
    texts |= {"log-format": "json", "roles": "seal"}
    for option in RUN:
        text = texts.get(option.name, "true" if option.default is False else "x")
        by_file = resolved(f'{option.name} = "{text}"')
        by_variable = resolved(environment={variable_of(option.name): text})
        assert by_file.options[option.name].source.origin is Origin.FILE
        assert by_file.options[option.name].value == by_variable.options[option.name].value
        assert by_file.options[option.name].value != option.default
    for config in CONFIGS:
        if config.default:
            by_variable = resolved(environment={variable_of(config.name): config.default})
            by_file = resolved(f'"{config.name}" = "{config.default}"')
            assert {config.name} == set(by_variable.configs) == set(by_file.configs)
            assert by_file.assignments == by_variable.assignments


def test_no_two_settings_have_one_variable() -> None:
    """
    Nor does a setting have the variable of a client, of Spark or of the tests.
    """
    names = [o.name for o in RUN] + [config.name for config in CONFIGS]
    variables = {variable_of(name) for name in names}

    assert len(names) == len(variables)
    assert set() == variables & OTHER_VARIABLES


def test_every_variable_of_the_repository_is_known() -> None:
    """
    A variable that driftlog's code reads is a setting, or stops no agent that starts beside it.
    """
    names = [o.name for o in RUN] + [config.name for config in CONFIGS]
    known = {variable_of(name) for name in names} | OTHER_VARIABLES
    read = {
        text.value
        for folder in ("agents", "client", "metadata", "spark_reader", "tests", "tiering", "tools")
        for path in (REPOSITORY / folder).rglob("*.py")
        if path != Path(__file__)
        for text in ast.walk(ast.parse(path.read_text()))
        if isinstance(text, ast.Constant)
        and isinstance(text.value, str)
        and re.fullmatch(r"DRIFTLOG_[A-Z_]+[A-Z]", text.value)
    }

    assert {"DRIFTLOG_STORE", "DRIFTLOG_BOOTSTRAP_SERVERS", "DRIFTLOG_TEST_KAFKA"} <= read
    assert set() == read - known


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("\nstor = 's3://b/p'", "a.toml:2: 'stor' is no setting of `driftlog agent run`: .*store"),
        ("session_timeout_ms = 1", "a.toml:1: .* did you mean session-timeout-ms"),
        ("log.retention.mss = 1", "a.toml:1: .* did you mean log.retention.ms"),
        ("session-timeout-ms = 5", "a.toml:1: session-timeout-ms: '5' is not from 2000"),
        ("session-timeout-ms = true", "a.toml:1: session-timeout-ms: 'true' is not from 2000"),
        ("log-level = 'loud'", "a.toml:1: log-level: 'loud' is none of debug, info"),
        ("dev = 'maybe'", "a.toml:1: dev: 'maybe' is neither true nor false"),
        ("store = ['a', 'b']", "a.toml:1: store: one value is needed, not a list"),
        ("num.partitions = 0", "a.toml:1: Invalid value 0 for configuration num.partitions"),
        ("num.partitions = false", "a.toml:1: .*Not a number of type INT"),
        ("group.consumer.assignors = []", "a.toml:1: group.consumer.assignors needs at least one"),
        ("agents = 3", "a.toml:1: `driftlog agent run` has no setting agents; `driftlog dev` has"),
        ("[typo.table]", "a.toml:1: no setting of `driftlog agent run` is in .typo.table."),
        ("etcd = 'http://u:secret@h:2379'", "a.toml:1: a URL of etcd has no user: .*--etcd-user"),
        ("etcd-password = 'secret'", "a.toml:1: etcd-password is in no file: .*_ETCD_PASSWORD"),
    ],
)
def test_a_fault_of_the_file_names_its_line(file: str, said: str) -> None:
    """
    And what is meant, where that can be said; a password is not repeated.
    """
    (fault,) = faults(file)

    assert re.match(said, fault)
    assert "secret" not in fault


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("DRIFTLOG_STOR", "x", "'DRIFTLOG_STOR' is no setting .*: did you mean DRIFTLOG_STORE"),
        ("DRIFTLOG_LOG_RETENTION_M", "1", ".*did you mean DRIFTLOG_LOG_RETENTION_MS"),
        ("DRIFTLOG_SESSION_TIMEOUT_MS", "5", "DRIFTLOG_SESSION_TIMEOUT_MS: session-timeout-ms: "),
        ("DRIFTLOG_MAX_GROUPS", "x", "DRIFTLOG_MAX_GROUPS: Invalid value x .*driftlog.max.groups"),
        ("DRIFTLOG_HTP_PORT", "9644", "'DRIFTLOG_HTP_PORT' is no setting"),
        ("DRIFTLOG_ETCD", "http://u:secret@h:2379", "DRIFTLOG_ETCD: a URL of etcd has no user"),
        ("DRIFTLOG_AGENTS", "3", "DRIFTLOG_AGENTS: .* `driftlog dev` has it"),
    ],
)
def test_a_fault_of_the_environment_names_its_variable(variable: str, text: str, said: str) -> None:
    """
    A variable with a typo is not passed over.
    """
    (fault,) = faults(environment={variable: text})

    assert re.match(said, fault)
    assert "secret" not in fault


def test_a_table_may_be_empty_where_settings_could_be() -> None:
    """
    All its lines are comments for now; and a table above tables has no lines of its own.
    """
    found = resolved("[log]\n# retention.ms = 1\n[group]\n[group.consumer]\nmax.size = 7")

    assert ("group.consumer.max.size=7",) == found.assignments


def test_all_faults_are_told_at_once() -> None:
    """
    One start shows what to repair.
    """
    found = faults("a = 1\nb = 2", {"DRIFTLOG_C": "3"}, ["d", "num.partitions=1", "e=5"])

    assert 5 == len(found)


def test_a_config_is_given_by_one_flag() -> None:
    """
    Of two flags neither wins.
    """
    (fault,) = faults(configs=["num.partitions=3", "num.partitions=4"])

    assert "num.partitions is given twice, as '3' and as '4'" in fault


@pytest.mark.parametrize(
    "variable",
    [
        "DRIFTLOG_PORT",
        "DRIFTLOG_SERVICE_HOST",
        "DRIFTLOG_SERVICE_PORT",
        "DRIFTLOG_SERVICE_PORT_KAFKA",
        "DRIFTLOG_PORT_9092_TCP",
        "DRIFTLOG_PORT_9092_TCP_ADDR",
        "DRIFTLOG_HEADLESS_PORT_9644_TCP_PROTO",
        "DRIFTLOG_ETCD_SERVICE_HOST",
    ],
)
def test_variables_of_kubernetes_services_are_passed_over(variable: str) -> None:
    """
    A service that is called driftlog does not stop every agent of its namespace.
    """
    assert () == resolved(environment={variable: "tcp://10.0.0.1:9092"}).assignments


def test_an_empty_variable_is_not_set() -> None:
    """
    Compose files pass ``${RACK:-}``.
    """
    found = resolved('rack = "file"', {"DRIFTLOG_RACK": "", "DRIFTLOG_NO_SUCH": ""})

    assert "file" == found.options["rack"].value


def test_a_password_is_shown_as_set_and_hidden() -> None:
    """
    `driftlog agent config` is pasted into tickets.
    """
    environment = {"DRIFTLOG_ETCD_PASSWORD": "secret"}
    (password,) = [r for r in rows(resolved(), {}, environment) if r.name == "etcd-password"]

    assert ("(hidden)", "env DRIFTLOG_ETCD_PASSWORD") == (password.value, str(password.source))


def test_agents_of_a_cluster_take_no_setting_twice() -> None:
    """
    `driftlog dev --agents` has the settings as flags; its agents read no variable again.
    """
    environment = {"DRIFTLOG_RACK": "a", "DRIFTLOG_CONFIG_FILE": "b", "PATH": "c"}
    kept = {"DRIFTLOG_ETCD_PASSWORD": "d", "PATH": "c"}

    assert kept == without_settings(environment | kept)


def test_dev_has_the_settings_of_an_agent_but_those_of_production() -> None:
    """
    A file for `driftlog dev` differs in where the metadata is, and in which agents do what.
    """
    names = {o.name for o in RUN} - {o.name for o in options_of("dev")}

    etcd = {"etcd", "etcd-cacert", "etcd-cert", "etcd-key", "etcd-user"}
    assert {"dev", "roles", *etcd} == names
    assert [o.name for o in RUN] == [o.name for o in options_of("agent", "config")]
