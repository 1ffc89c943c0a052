"""The `driftlog` command.

    driftlog dev --dir DIR            an agent on this machine, for trying it out
    driftlog dev --agents N --dir DIR a cluster on this machine: etcd and N agents
    driftlog agent run --dir DIR …    an agent as it is run in production
    driftlog segments seal TOPIC      turn what is committed into Parquet now

Root.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]  # no __all__

from driftlog import local_cluster, local_etcd

_HTTP_CONFIG = "driftlog.http.address"
_LISTENER = "127.0.0.1:9092"
_HTTP_LISTENER = "127.0.0.1:9644"
_ETCD_PASSWORD = "DRIFTLOG_ETCD_PASSWORD"  # the variable's name
_SEAL_TIMEOUT_S = 600
_ADMIN_TIMEOUT_S = 10
_CONNECT_TIMEOUT_S = 5


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    _refuse_unknown(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(arguments)
    result: int = options.run(options)
    return result


def _refuse_unknown(arguments: list[str]) -> None:
    """End with what is not known: argparse names what is missing first, and hides the typo."""
    options, unknown = _parser(lenient=True).parse_known_args(arguments)
    unknown = [argument for argument in unknown if argument not in ("-h", "--help", "--version")]
    if unknown:
        parser: argparse.ArgumentParser = options.parser
        prog = parser.prog
        parser.exit(
            2, f"{prog}: unknown: {' '.join(unknown)}; `{prog} --help` says what there is\n"
        )


def _parser(*, lenient: bool = False) -> argparse.ArgumentParser:
    """The command line; *lenient*: nothing must be there, and nothing is answered at once."""
    parser = argparse.ArgumentParser(
        prog="driftlog", description="A Kafka log whose disk is a bucket.", add_help=not lenient
    )
    if not lenient:
        version = f"driftlog {metadata.version('driftlog')}"
        parser.add_argument("--version", action="version", version=version)
    _runs(parser, _help)
    commands = parser.add_subparsers(metavar="COMMAND")
    dev = commands.add_parser(
        "dev",
        help="run one agent in the foreground, or a local cluster",
        description="Run one agent in the foreground, with the embedded metadata store; or, with "
        "--agents, an etcd and so many agents, each of which is started again when it dies.  It "
        "seals what is a minute old.  SIGTERM or Ctrl-C drains it; started again on DIR it goes "
        "on.",
        add_help=not lenient,
    )
    dev.add_argument(
        "--agents",
        type=_agent_count,
        metavar="N",
        help="a cluster of N agents with a local etcd, in DIR/agent-1, DIR/agent-2, …, on the port "
        "of --listener and the next ones; etcd is taken from the variable "
        f"{local_etcd.BINARY_VARIABLE}, from PATH, or from the checkout (make etcd)",
    )
    _agent_options(dev, lenient, None, f"{_HTTP_LISTENER}, or a free port where that is taken")
    _runs(dev, _dev)
    agent = commands.add_parser(
        "agent", help="the agent as it is run in production", add_help=not lenient
    )
    _runs(agent, _help)
    agent_commands = agent.add_subparsers(metavar="COMMAND")
    run = agent_commands.add_parser(
        "run",
        help="run an agent in the foreground",
        description="Run an agent in the foreground, as `driftlog dev` does, but seal what has "
        "128 MiB or is an hour old.",
        add_help=not lenient,
    )
    _agent_options(run, lenient, _HTTP_LISTENER, "%(default)s")
    run.add_argument(
        "--dev", action="store_true", help="seal what is a minute old, as `driftlog dev` does"
    )
    _etcd_options(run)
    _runs(run, _agent_run)
    segments = commands.add_parser("segments", help="sealed segments", add_help=not lenient)
    _runs(segments, _help)
    segment_commands = segments.add_subparsers(metavar="COMMAND")
    seal = segment_commands.add_parser(
        "seal",
        help="turn everything that is committed in a topic into Parquet now",
        add_help=not lenient,
    )
    seal.add_argument("topic", metavar="TOPIC", nargs="?" if lenient else None)
    seal.add_argument(
        "--bootstrap-server",
        "-b",
        default="127.0.0.1:9092",
        metavar="HOST:PORT",
        help="any agent of the cluster (default: %(default)s)",
    )
    _runs(seal, _seal)
    return parser


def _runs(parser: argparse.ArgumentParser, run: Any) -> None:
    parser.set_defaults(run=run, parser=parser)


def _help(options: argparse.Namespace) -> int:
    """A command that needs another one behind it."""
    options.parser.print_help(sys.stderr)
    return 2


def _agent_options(
    parser: argparse.ArgumentParser, lenient: bool, http_listener: str | None, http_default: str
) -> None:
    parser.add_argument(
        "--dir",
        required=not lenient,
        type=Path,
        metavar="DIR",
        help="the agent's directory: metadata, buffer files, and the objects without --store",
    )
    parser.add_argument(
        "--store",
        metavar="LOCATION",
        help="where the objects go: s3://bucket/prefix (endpoint and credentials from the AWS_* "
        "variables) or a directory; default: DIR/objects",
    )
    parser.add_argument(
        "--listener",
        action="append",
        metavar="[NAME://]HOST:PORT",
        help="where to listen, PLAINTEXT unless it has another name; port 0: any free one; once "
        "for each listener, all of them plaintext; agents reach each other by the first (default: "
        f"{_LISTENER})",
    )
    parser.add_argument(
        "--advertised-listener",
        action="append",
        metavar="[NAME://]HOST:PORT",
        help="what clients of the listener of that name are told to connect to; default: the "
        "listener",
    )
    parser.add_argument(
        "--http-listener",
        default=http_listener,
        metavar="HOST:PORT",
        help="for /metrics, /healthz, /readyz and `driftlog segments seal`; port 0: any free one "
        f"(default: {http_default})",
    )
    parser.add_argument("--rack", metavar="RACK", help="the zone that this agent is in")
    parser.add_argument(
        "--session-timeout-ms",
        type=_session_timeout_ms,
        default=6_000,
        metavar="MS",
        help="how long an agent may be silent before others take over its partitions: at least "
        "2000; shorter: sooner, and a slow machine loses its session (default: %(default)s)",
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )


def _session_timeout_ms(text: str) -> int:
    """etcd counts whole seconds, and two or more of them."""
    if not text.isdecimal() or not 2_000 <= int(text) <= 600_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 2000 to 600000 (milliseconds)")
    return int(text)


def _etcd_options(parser: argparse.ArgumentParser) -> None:
    """Named as etcdctl's."""
    parser.add_argument(
        "--etcd",
        type=_urls,
        metavar="URL[,URL]",
        help="members of etcd, http://HOST:2379 or https://, that keep the metadata; default: "
        "embedded, in DIR",
    )
    for name, of in (
        ("cacert", "who signed the members' certificates"),
        ("cert", "this agent's certificate"),
        ("key", "its key"),
    ):
        parser.add_argument(
            f"--etcd-{name}", type=Path, metavar="FILE", help=f"PEM of {of}, for https"
        )
    parser.add_argument(
        "--etcd-user",
        metavar="USER",
        help=f"where etcd wants one; the password is taken from {_ETCD_PASSWORD}",
    )


def _urls(text: str) -> tuple[str, ...]:
    return tuple(url.strip() for url in text.split(","))


def _agent_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= local_cluster.MOST_AGENTS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of agents: 1 to {local_cluster.MOST_AGENTS}"
        )
    return int(text)


def _dev(options: argparse.Namespace) -> int:
    if options.agents is not None:
        return _dev_cluster(options)
    if local_cluster.is_cluster(options.dir):
        print(
            f"driftlog: {options.dir} is that of a cluster: start it with --agents N, or choose "
            f"another --dir",
            file=sys.stderr,
        )
        return 1
    return _run_agent(options, etcd=None, dev=True)


def _agent_run(options: argparse.Namespace) -> int:
    try:
        etcd = _etcd(options)
    except ImportError as error:
        return _no_extra(error)
    except ValueError as error:
        print(f"driftlog: {error}", file=sys.stderr)
        return 2
    return _run_agent(options, etcd=etcd, dev=options.dev)


def _etcd(options: argparse.Namespace) -> Any:
    """The settings of etcd, where it is asked for.

    Raises:
        ValueError: what belongs to etcd was given without it.
    """
    from driftlog_metadata.etcd_client import EtcdSettings  # noqa: PLC0415  # an extra

    if options.etcd is None:
        if options.etcd_cacert or options.etcd_cert or options.etcd_key or options.etcd_user:
            raise ValueError("--etcd-… without --etcd: where is it?")
        return None
    return EtcdSettings(
        endpoints=options.etcd,
        ca_file=options.etcd_cacert,
        certificate_file=options.etcd_cert,
        key_file=options.etcd_key,
        user=options.etcd_user,
        password=os.environ.get(_ETCD_PASSWORD, ""),
    )


def _no_extra(error: ImportError) -> int:
    print(
        f"driftlog: {error}.  An agent needs its extra: pip install 'driftlog[agent]'",
        file=sys.stderr,
    )
    return 1


def _run_agent(options: argparse.Namespace, *, etcd: Any, dev: bool) -> int:
    try:
        from driftlog_agents.main import DEV_SEAL_MS, Options, run  # noqa: PLC0415  # an extra
    except ImportError as error:
        return _no_extra(error)
    return run(
        Options(
            directory=options.dir,
            store=options.store,
            listeners=tuple(options.listener or (_LISTENER,)),
            advertised_listeners=tuple(options.advertised_listener or ()),
            http_listener=options.http_listener,
            rack=options.rack,
            session_timeout_ms=options.session_timeout_ms,
            etcd=etcd,
            seal_ms=DEV_SEAL_MS if dev else None,
            log_level=options.log_level,
            banner=lambda line: print(line, flush=True),
        )
    )


# ── A cluster on this machine ──


def _dev_cluster(options: argparse.Namespace) -> int:
    from driftlog_agents.listeners import ListenError  # noqa: PLC0415  # an extra

    if importlib.util.find_spec("grpc") is None:
        return _no_extra(ImportError("No module named 'grpc'"))
    directory: Path = options.dir.absolute()
    same = ["--session-timeout-ms", str(options.session_timeout_ms)]
    if options.rack:
        same += ["--rack", options.rack]
    lock = local_cluster.DirectoryLock(directory)
    try:
        # Whatever can be refused is, before there is anything on the disk.
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
            agent_command=(*_agent_command(), "--dev", *same, "--log-level", options.log_level),
        )
        return local_cluster.run(plan, lock)
    except (local_cluster.ClusterError, local_etcd.NoEtcdError, ListenError, OSError) as error:
        print(f"driftlog: {error}", file=sys.stderr)
        return 1


def _agent_command() -> list[str]:
    """`driftlog agent run`, by the name under which we were started where that is `driftlog`."""
    ours = Path(sys.argv[0])
    if ours.name == "driftlog" and ours.is_file():
        return [sys.executable, str(ours.absolute()), "agent", "run"]
    return [sys.executable, "-P", "-m", "driftlog.cli", "agent", "run"]


async def _plan_agents(options: argparse.Namespace) -> tuple[local_cluster.AgentPlan, ...]:
    """Where each agent listens: where the options say, and on the next ports.

    Raises:
        ListenError: it cannot be; all were tried.
    """
    from driftlog_agents.listeners import parse_address, read_listeners  # noqa: PLC0415

    listeners = read_listeners(options.listener or [_LISTENER], options.advertised_listener or [])
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
    """The port of the n-th agent, which nobody has; held until *taken* ends.

    Raises:
        ListenError: it cannot be listened on.
    """
    from driftlog_agents.listeners import ListenError, take  # noqa: PLC0415  # an extra

    port = _nth(host, first, n, option)
    try:
        sockets = await take(host, port, option)
    except ListenError as error:
        raise ListenError(
            f"{error}.  It is for agent-{n + 1}: agents have the port of {option} and the next ones"
        ) from error
    for held in sockets:
        taken.callback(held.close)
    found: int = sockets[0].getsockname()[1]
    return found


def _nth(host: str, first: int, n: int, option: str) -> int:
    """The n-th port from *first* on; of port 0, any.

    Raises:
        ListenError: there are not so many ports.
    """
    from driftlog_agents.listeners import ListenError  # noqa: PLC0415  # an extra

    if first + n > 65_535:
        raise ListenError(
            f"{option} {_address(host, first)}: agents have this port and the next ones, and the "
            f"largest is 65535"
        )
    return first + n if first else 0


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# ── segments ──


def _seal(options: argparse.Namespace) -> int:
    errors: list[str] = []
    sealed: dict[int, int] = {}
    try:
        agents = _http_addresses(options.bootstrap_server, errors)
    except RuntimeError as error:
        print(f"driftlog: {error}", file=sys.stderr)
        return 1
    for address in agents:
        try:
            sealed.update(_seal_at(address, options.topic))
        except RuntimeError as error:
            errors.append(str(error))
    if sealed:
        print(f"{'partition':>9}  {'sealed end':>12}")
        for partition, end in sorted(sealed.items()):
            print(f"{partition:>9}  {end:>12,}")
    elif not errors:
        errors.append(f"nobody leads a partition of {options.topic!r} just now: try again")
    for message in dict.fromkeys(errors):
        print(f"driftlog: {message}", file=sys.stderr)
    return 1 if errors else 0


def _http_addresses(bootstrap: str, errors: list[str]) -> list[str]:
    """The HTTP port of every agent, from its broker configs; *errors* gets who did not tell.

    Raises:
        RuntimeError: nobody answers, or it is no driftlog that does.
    """
    _connect(bootstrap)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        brokers = admin.list_topics(timeout=_ADMIN_TIMEOUT_S).brokers
    except KafkaException as error:
        raise RuntimeError(
            f"{bootstrap} does not answer as a Kafka broker does ({error.args[0].str()}).  "
            f"{_WHICH_ADDRESS}"
        ) from error
    found: list[str] = []
    # A call for each: librdkafka takes no two brokers in one.
    asked = {
        node: admin.describe_configs(
            [ConfigResource(ResourceType.BROKER, str(node))], request_timeout=_ADMIN_TIMEOUT_S
        )
        for node in brokers
    }
    for node, futures in asked.items():
        try:
            (configs,) = (future.result() for future in futures.values())
        except KafkaException as error:
            errors.append(
                f"agent {node} at {brokers[node].host}:{brokers[node].port} does not answer "
                f"({error.args[0].str()}): what it leads is not sealed.  Try again when it is "
                f"back, or when others lead that"
            )
            continue
        entry = configs.get(_HTTP_CONFIG)
        if entry is not None and entry.value:
            found.append(str(entry.value))
    if not found and not errors:
        raise RuntimeError(f"{bootstrap} is no driftlog agent, or an old one.  {_WHICH_ADDRESS}")
    return found


_WHICH_ADDRESS = (
    "Give --bootstrap-server the bootstrap address that the agent prints when it is ready"
)


def _connect(bootstrap: str) -> None:
    """Find out whether anybody is there: Kafka's clients wait, for it may come yet.

    Raises:
        RuntimeError: nobody is.
    """
    errors: list[str] = []
    for address in bootstrap.split(","):
        host, _, port = address.rpartition("://")[2].strip().rpartition(":")
        if not port.isdecimal() or not host:
            errors.append(f"{address!r} is not HOST:PORT, for example 127.0.0.1:9092.")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError, UnicodeError) as error:  # the last: of IDNA
            reason = getattr(error, "strerror", None) or error
            errors.append(f"nobody answers at {address}: {reason}.  Does the agent run?")
        else:
            return
    raise RuntimeError(f"{'; '.join(errors)}  {_WHICH_ADDRESS}")


def _seal_at(address: str, topic: str) -> dict[int, int]:
    name = urllib.parse.quote(topic, safe="")
    request = urllib.request.Request(f"http://{address}/topics/{name}/seal", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_SEAL_TIMEOUT_S) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error).get("error", str(error))) from error
    except OSError as error:
        raise RuntimeError(f"{address} does not answer: {error}") from error
    return {int(partition): int(end) for partition, end in body["sealed_end"].items()}


if __name__ == "__main__":
    sys.exit(main())
