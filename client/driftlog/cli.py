"""The `driftlog` command.

    driftlog dev --dir DIR            an agent on this machine, for trying it out
    driftlog agent run --dir DIR …    an agent as it is run in production
    driftlog segments seal TOPIC      turn what is committed into Parquet now

Root.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]  # no __all__

_HTTP_CONFIG = "driftlog.http.address"
_SEAL_TIMEOUT_S = 600
_ADMIN_TIMEOUT_S = 10


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    result: int = options.run(options)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="driftlog", description="A Kafka log whose disk is a bucket."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    dev = commands.add_parser(
        "dev",
        help="run one agent in the foreground, with the embedded metadata store",
        description="Run one agent in the foreground, with the embedded metadata store.  It seals "
        "what is a minute old.  SIGTERM or Ctrl-C drains it; started again on DIR it goes on.",
    )
    _agent_options(dev)
    dev.set_defaults(run=_dev)
    agent = commands.add_parser("agent", help="the agent as it is run in production")
    agent_commands = agent.add_subparsers(required=True, metavar="COMMAND")
    run = agent_commands.add_parser("run", help="run an agent in the foreground")
    _agent_options(run)
    run.set_defaults(run=_agent_run, http_listener="127.0.0.1:9644")
    segments = commands.add_parser("segments", help="sealed segments")
    segment_commands = segments.add_subparsers(required=True, metavar="COMMAND")
    seal = segment_commands.add_parser(
        "seal", help="turn everything that is committed in a topic into Parquet now"
    )
    seal.add_argument("topic", metavar="TOPIC")
    seal.add_argument(
        "--bootstrap-server",
        "-b",
        default="127.0.0.1:9092",
        metavar="HOST:PORT",
        help="any agent of the cluster (default: %(default)s)",
    )
    seal.set_defaults(run=_seal)
    return parser


def _agent_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        required=True,
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
        default="127.0.0.1:9092",
        metavar="HOST:PORT",
        help="where to listen; port 0: any free one (default: %(default)s)",
    )
    parser.add_argument(
        "--advertised-listener",
        metavar="HOST:PORT",
        help="what clients are told to connect to; default: the listener",
    )
    parser.add_argument(
        "--http-listener",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="for /metrics, /healthz, /readyz and `driftlog segments seal`",
    )
    parser.add_argument("--rack", metavar="RACK", help="the zone that this agent is in")
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )


def _dev(options: argparse.Namespace) -> int:
    from driftlog_agents.main import DEV_SEAL_MS  # noqa: PLC0415  # an extra

    return _run_agent(options, DEV_SEAL_MS)


def _agent_run(options: argparse.Namespace) -> int:
    return _run_agent(options, None)


def _run_agent(options: argparse.Namespace, seal_ms: float | None) -> int:
    try:
        from driftlog_agents.main import Options, run  # noqa: PLC0415  # an extra
    except ImportError as error:
        print(
            f"driftlog: {error}.  An agent needs its extra: pip install 'driftlog[agent]'",
            file=sys.stderr,
        )
        return 1
    return run(
        Options(
            directory=options.dir,
            store=options.store,
            listener=options.listener,
            advertised_listener=options.advertised_listener,
            http_listener=options.http_listener,
            rack=options.rack,
            seal_ms=seal_ms,
            log_level=options.log_level,
            banner=lambda line: print(line, flush=True),
        )
    )


# ── segments ──


def _seal(options: argparse.Namespace) -> int:
    try:
        agents = _http_addresses(options.bootstrap_server)
    except (KafkaException, RuntimeError) as error:
        print(f"driftlog: {options.bootstrap_server} does not answer: {error}", file=sys.stderr)
        return 1
    sealed: dict[int, int] = {}
    errors: list[str] = []
    for address in agents:
        try:
            sealed.update(_seal_at(address, options.topic))
        except RuntimeError as error:
            errors.append(str(error))
    if not sealed:
        print(f"driftlog: {'; '.join(errors)}", file=sys.stderr)
        return 1
    print(f"{'partition':>9}  {'sealed end':>12}")
    for partition, end in sorted(sealed.items()):
        print(f"{partition:>9}  {end:>12,}")
    return 0


def _http_addresses(bootstrap: str) -> list[str]:
    """The HTTP port of every agent, from its broker configs.

    Raises:
        KafkaException: nobody answers.
        RuntimeError: it is no driftlog that answers.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    brokers = admin.list_topics(timeout=_ADMIN_TIMEOUT_S).brokers
    resources = [ConfigResource(ResourceType.BROKER, str(node)) for node in brokers]
    found: list[str] = []
    for future in admin.describe_configs(resources).values():
        configs: dict[str, Any] = future.result(timeout=_ADMIN_TIMEOUT_S)
        entry = configs.get(_HTTP_CONFIG)
        if entry is not None and entry.value:
            found.append(str(entry.value))
    if not found:
        raise RuntimeError("it is no driftlog agent, or it has no HTTP port")
    return found


def _seal_at(address: str, topic: str) -> dict[int, int]:
    request = urllib.request.Request(f"http://{address}/topics/{topic}/seal", method="POST")
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
