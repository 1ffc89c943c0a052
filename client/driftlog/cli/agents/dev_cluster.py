"""`driftlog dev --agents N`: the options of each agent, settled before any of them starts.

Root.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Final

from driftlog.cli.agents.start_settings import without_settings
from driftlog.cli.common.output import complain, no_extra
from driftlog.dev_cluster import local_cluster, local_etcd

LISTENER: Final = "127.0.0.1:9092"


def run(options: argparse.Namespace) -> int:
    try:
        import grpc  # noqa: F401, PLC0415  # what the agents reach etcd with

        from driftlog_agents.network.listeners import ListenError  # noqa: PLC0415  # an extra
    except ImportError as error:
        return no_extra(error, "an agent")
    directory: Path = options.dir.absolute()
    same = ["--session-timeout-ms", str(options.session_timeout_ms)]
    same += ["--new-cluster-grace-ms", str(options.new_cluster_grace_ms)]
    if options.rack:
        same += ["--rack", options.rack]
    for config in options.config or ():
        same += ["--config", config]
    if options.store is None or options.store.lower().startswith(("s3://", "s3a://")):
        os.umask(0o077)  # (other users may read a directory of objects of its own)
    lock = local_cluster.DirectoryLock(directory)
    try:
        # All checks come before the first write to the disk.
        local_cluster.refuse_single(directory)
        binary = local_etcd.find_binary()
        lock.take_if_it_was()
        agents = asyncio.run(_plan_agents(options))
        lock.take()
        plan = local_cluster.ClusterPlan(
            directory=directory,
            objects=options.store or str(directory / "objects"),
            etcd=local_etcd.settle(binary, directory, local_cluster.ports(agents)),
            agents=agents,
            agent_command=(*_agent_command(), "--dev", *same, *_log_options(options)),
            agent_environment=without_settings(os.environ),
        )
        return local_cluster.run(plan, lock)
    except (local_cluster.ClusterError, local_etcd.NoEtcdError, ListenError, OSError) as error:
        complain(str(error))
        return 1


def _log_options(options: argparse.Namespace) -> tuple[str, ...]:
    return "--log-level", options.log_level, "--log-format", options.log_format


def _agent_command() -> list[str]:
    """`driftlog agent run`, by this command's own path if that is `driftlog`."""
    ours = Path(sys.argv[0])
    if ours.name == "driftlog" and ours.is_file():
        return [sys.executable, str(ours.absolute()), "agent", "run"]
    return [sys.executable, "-P", "-m", "driftlog.cli", "agent", "run"]


async def _plan_agents(options: argparse.Namespace) -> tuple[local_cluster.AgentPlan, ...]:
    """The addresses of each agent: those of the options, and the next ports.

    Raises:
        ListenError: an agent cannot listen there; all were tried.
    """
    from driftlog_agents.network.listeners import parse_address, read_listeners  # noqa: PLC0415

    listeners = read_listeners(options.listener, options.advertised_listener or [])
    http = "--http-listener"
    plans = []
    with contextlib.ExitStack() as taken:
        for n in range(options.agents):
            listening, told = [], []
            for at in listeners:
                port = await _take(at.host, at.port, n, "--listener", taken)
                listening.append(f"{at.name}://{_address(at.host, port)}")
                host = at.advertised_host or at.host
                port = _nth(host, at.advertised_port, n, "--advertised-listener") or port
                told.append(f"{at.name}://{_address(host, port)}")
            http_listener = None
            if options.http_listener is not None:
                host, first = parse_address(options.http_listener, http)
                http_listener = _address(host, await _take(host, first, n, http, taken))
            plans.append(
                local_cluster.AgentPlan(
                    listeners=tuple(listening), advertised=tuple(told), http_listener=http_listener
                )
            )
    return tuple(plans)


async def _take(host: str, first: int, n: int, option: str, taken: contextlib.ExitStack) -> int:
    """A free port for the n-th agent; held until *taken* ends.

    Raises:
        ListenError: the port cannot be listened on.
    """
    from driftlog_agents.network.listeners import ListenError, take  # noqa: PLC0415  # an extra

    port = _nth(host, first, n, option)
    try:
        sockets = await take(host, port, option)
    except ListenError as error:
        raise ListenError(
            f"{error}.  agent-{n + 1} needs it: agents use the port of {option} and the next ones"
        ) from error
    for held in sockets:
        taken.callback(held.close)
    found: int = sockets[0].getsockname()[1]
    return found


def _nth(host: str, first: int, n: int, option: str) -> int:
    """The n-th port from *first* on; for port 0, any port.

    Raises:
        ListenError: there are not so many ports.
    """
    from driftlog_agents.network.listeners import ListenError  # noqa: PLC0415  # an extra

    if first + n > 65_535:
        raise ListenError(
            f"{option} {_address(host, first)}: agents use this port and the next ones, "
            "and the largest port is 65535"
        )
    return first + n if first else 0


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
