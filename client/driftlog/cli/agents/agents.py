"""`driftlog dev` and `driftlog agent run`: an agent in the foreground; `driftlog agent config`:
its settings.

Root.
"""

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftlog.cli.agents import dev_cluster
from driftlog.cli.agents.command_settings import settle
from driftlog.cli.agents.start_options import start_options, take_options
from driftlog.cli.agents.start_settings import (
    FILE_VARIABLE,
    SettingsError,
    SettingValue,
    Source,
    StartSettings,
    rows,
)
from driftlog.cli.common.errors import OK, USAGE
from driftlog.cli.common.output import complain, no_extra, print_json, print_table
from driftlog.cli.common.parsers import Commands, Parser, add_command, add_group, grace_ms
from driftlog.cli.connection.etcd_options import add_etcd_options, etcd_settings
from driftlog.dev_cluster import local_cluster, local_etcd

if TYPE_CHECKING:
    from driftlog_agents.process.startup_configs import Options

_LISTENER = dev_cluster.LISTENER
_HTTP_LISTENER = "127.0.0.1:9644"
_ROLES = ("serve", "seal")


def add_commands(commands: Commands) -> None:
    """The commands of this file."""
    dev = add_command(
        commands,
        "dev",
        _dev,
        help="run one agent in the foreground, or a local cluster",
        description="Run one agent in the foreground, with the embedded metadata store.  With "
        "--agents, run an etcd and N agents; the command restarts an agent that dies.  "
        "The agent seals records that are a minute old.  SIGTERM or Ctrl-C drains it.  "
        "Started again on DIR, the agent continues with the same data.",
    )
    dev.add_argument(
        "--agents",
        type=_agent_count,
        metavar="N",
        help="run N agents with a local etcd, in DIR/agent-1, DIR/agent-2, …, on the port of "
        "--listener and the next ones; the etcd binary is that of the variable "
        f"{local_etcd.BINARY_VARIABLE}, of PATH, or of the checkout (make etcd)",
    )
    _agent_options(dev, None, f"{_HTTP_LISTENER}, or a free port if that is taken")
    take_options(dev)
    agent_commands = add_group(commands, "agent", help="run an agent as in production")
    run = add_command(
        agent_commands,
        "run",
        _agent_run,
        help="run an agent in the foreground",
        description="Run an agent in the foreground, as `driftlog dev` does.  It seals a "
        "partition at 128 MiB, or when its oldest unsealed record is an hour old.  The options "
        "may stand in the file of --config-file and in variables; docs/configs.md has their names.",
    )
    _run_options(run)
    config = add_command(
        agent_commands,
        "config",
        _agent_config,
        help="show the settings that an agent would start with",
        description="Show every setting with its effective value and its source: a line of the "
        "file, a variable, a flag, or the default.  The options are those of `driftlog agent run`; "
        "no agent starts.",
        examples="  driftlog agent config --config-file /etc/driftlog/agent.toml\n"
        "  driftlog agent config --config-file agent.toml --rack zone-a --json\n",
    )
    _run_options(config)
    config.add_argument("--json", action="store_true", help="print JSON")
    there = {option.name for option in start_options(dev)}
    dev.set_defaults(
        elsewhere={
            option.name: "`driftlog agent run`"
            for option in start_options(run)
            if option.name not in there
        }
    )


def _run_options(parser: Parser) -> None:
    """The options of `driftlog agent run`."""
    _agent_options(parser, _HTTP_LISTENER, "%(default)s")
    parser.add_argument(
        "--dev",
        action="store_true",
        help="behave as `driftlog dev`: seal records that are a minute old, create topics "
        "automatically, and let new consumer groups start without a delay",
    )
    parser.add_argument(
        "--roles",
        type=_roles,
        default=_ROLES,
        metavar="ROLE[,ROLE]",
        help="what the agent does: serve leads partitions and coordinates groups; seal works on "
        "sealed segments, also of leaders with serve alone, and collects garbage; docs/operate.md "
        f"says more (default: {','.join(_ROLES)})",
    )
    add_etcd_options(parser)
    take_options(parser)
    parser.set_defaults(elsewhere={})


def _agent_options(
    parser: argparse.ArgumentParser, http_listener: str | None, http_default: str
) -> None:
    parser.add_argument(
        "--config-file",
        type=Path,
        metavar="FILE",
        help="TOML file of settings: these options by their names, and broker configs; variables "
        f"override it, and flags override both (default: {FILE_VARIABLE})",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="directory of the agent: metadata, buffer files and, without --store, the objects",
    )
    parser.add_argument(
        "--store",
        metavar="LOCATION",
        help="location of the objects: s3://bucket/prefix (endpoint and credentials from the AWS_* "
        "variables) or a directory (default: DIR/objects)",
    )
    parser.add_argument(
        "--listener",
        action="append",
        default=[_LISTENER],
        metavar="[NAME://]HOST:PORT",
        help="address of a listener, whose name is PLAINTEXT unless NAME is given; may be "
        "repeated; every listener is plaintext; agents reach each other by the first; port 0: "
        f"any free port (default: {_LISTENER})",
    )
    parser.add_argument(
        "--advertised-listener",
        action="append",
        metavar="[NAME://]HOST:PORT",
        help="address that clients of the listener NAME connect to (default: the listener)",
    )
    parser.add_argument(
        "--http-listener",
        default=http_listener,
        metavar="HOST:PORT",
        help="address of the HTTP port, with /metrics, /healthz, /readyz and `driftlog segments "
        f"seal`; port 0: any free port (default: {http_default})",
    )
    parser.add_argument("--rack", metavar="RACK", help="zone of this agent")
    parser.add_argument(
        "--session-timeout-ms",
        type=_session_timeout_ms,
        default=6_000,
        metavar="MS",
        help="session timeout of the agent in milliseconds, at least 2000: without a renewal "
        "for this long, other agents take over its partitions; with a short timeout a "
        "slow machine loses its session (default: %(default)s)",
    )
    parser.add_argument(
        "--new-cluster-grace-ms",
        type=grace_ms,
        default=43_200_000,
        metavar="MS",
        help="grace of a cluster that this agent makes, at least 1000: how long objects stay after "
        "nothing names them; without effect on a cluster that exists (default: %(default)s, 12 h)",
    )
    parser.add_argument(
        "--config",
        action="append",
        metavar="NAME=VALUE",
        help="set a broker config, such as offsets.retention.minutes=20160 or num.partitions=6; "
        "may be repeated; docs/configs.md lists them, and so does the error for an unknown one",
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="write log lines of this level and above (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        default="text",
        choices=["text", "json"],
        help="format of the log on standard error; json: one object a line, with ts, level "
        "and event (default: %(default)s)",
    )


def _session_timeout_ms(text: str) -> int:
    """A session timeout; etcd counts whole seconds, two at least."""
    if not text.isdecimal() or not 2_000 <= int(text) <= 600_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 2000 to 600000 (milliseconds)")
    return int(text)


def _roles(text: str) -> tuple[str, ...]:
    """The roles that *text* names, each once, in the order of `_ROLES`."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _ROLES:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no role: an agent has {' or '.join(_ROLES)}, or both with a comma"
            )
    return tuple(role for role in _ROLES if role in names)


def _agent_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= local_cluster.MOST_AGENTS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of agents from 1 to {local_cluster.MOST_AGENTS}"
        )
    return int(text)


def _dev(options: argparse.Namespace) -> int:
    found = _settled(options, "driftlog dev")
    if isinstance(found, int):
        return found
    if options.agents is not None:
        return dev_cluster.run(options)
    if local_cluster.is_cluster(options.dir):
        complain(
            f"{options.dir} is the directory of a cluster: give --agents N, or choose another --dir"
        )
        return 1
    return _run_agent(options, etcd=None, dev=True)


def _agent_run(options: argparse.Namespace) -> int:
    found = _settled(options, "driftlog agent run")
    if isinstance(found, int):
        return found
    try:
        etcd = etcd_settings(options)
    except ImportError as error:
        return no_extra(error, "an agent")
    except ValueError as error:
        complain(str(error))
        return USAGE
    return _run_agent(options, etcd=etcd, dev=options.dev)


def _agent_config(options: argparse.Namespace) -> int:
    found = _settled(options, "driftlog agent run")
    if isinstance(found, int):
        return found
    from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS  # noqa: PLC0415  # an extra
    from driftlog_agents.network.listeners import (  # noqa: PLC0415
        ListenError,
        parse_address,
        read_listeners,
    )
    from driftlog_agents.process.startup_configs import agent_settings  # noqa: PLC0415

    try:
        etcd_settings(options)
        read_listeners(options.listener, options.advertised_listener or ())
        parse_address(options.http_listener, "--http-listener")
    except (ValueError, ListenError) as error:
        complain(str(error))
        return USAGE
    start = _options(options, etcd=None, dev=options.dev)
    with contextlib.redirect_stdout(sys.stderr):  # where it logs what it changes
        values = agent_settings(start, "", in_bucket=True).broker.configs
    if options.store is None:
        found.options["store"] = SettingValue("store", options.dir / "objects", Source())
    effective = {name: values.get(name) for name in STARTUP_CONFIGS}
    shown = list(rows(found, effective, os.environ))
    if options.json:
        print_json([_as_json(setting) for setting in shown])
    else:
        print_table(("name", "value", "from"), [(s.name, s.value, str(s.source)) for s in shown])
    return OK


def _as_json(setting: SettingValue) -> dict[str, Any]:
    source = setting.source
    return {
        "name": setting.name,
        "value": setting.value,
        "source": source.origin.value,
        "place": source.place or None,
    }


def _settled(options: argparse.Namespace, command: str) -> StartSettings | int:
    """The settings of *command*; an exit status: they cannot be used."""
    try:
        return settle(options, command, options.elsewhere)
    except ImportError as error:
        return no_extra(error, "an agent")
    except SettingsError as error:
        for fault in error.faults:
            complain(fault)
        return USAGE


def _run_agent(options: argparse.Namespace, *, etcd: Any, dev: bool) -> int:
    try:
        from driftlog_agents.process.main import run  # noqa: PLC0415  # an extra
    except ImportError as error:
        return no_extra(error, "an agent")
    return run(_options(options, etcd=etcd, dev=dev))


def _options(options: argparse.Namespace, *, etcd: Any, dev: bool) -> "Options":
    from driftlog_agents.process.startup_configs import (  # noqa: PLC0415  # an extra
        DEV_REBALANCE_DELAY_MS,
        DEV_SEAL_MS,
        REBALANCE_DELAY_MS,
        Options,
        as_roles,
    )

    return Options(
        directory=options.dir,
        store=options.store,
        listeners=tuple(options.listener),
        advertised_listeners=tuple(options.advertised_listener or ()),
        http_listener=options.http_listener,
        rack=options.rack,
        roles=as_roles(getattr(options, "roles", _ROLES)),
        session_timeout_ms=options.session_timeout_ms,
        etcd=etcd,
        seal_ms=DEV_SEAL_MS if dev else None,
        auto_create_topics=dev,
        group_initial_rebalance_delay_ms=DEV_REBALANCE_DELAY_MS if dev else REBALANCE_DELAY_MS,
        new_cluster_grace_ms=options.new_cluster_grace_ms,
        log_level=options.log_level,
        log_format=options.log_format,
        configs=tuple(options.config or ()),
        banner=lambda line: print(line, flush=True),
    )
