"""`driftlog segments`: seal what is committed; what is sealed, as the bucket says it.

Shell.
"""

import argparse
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    ConfigResource,
    ResourceType,
)

from driftlog.cli import bucket_segments
from driftlog.cli.connection import WHICH_ADDRESS, add_bootstrap_option, bootstrap, connect
from driftlog.cli.errors import FAILED, OK, CommandError
from driftlog.cli.output import complain
from driftlog.cli.parsers import Commands, add_command, add_group

_HTTP_CONFIG: Final = "driftlog.http.address"
_SEAL_TIMEOUT_S: Final = 600
_ADMIN_TIMEOUT_S: Final = 10


def add_commands(commands: Commands) -> None:
    """The commands of this file."""
    segments = add_group(commands, "segments", help="seal records; what is sealed")
    seal = add_command(
        segments,
        "seal",
        _seal,
        help="turn everything that is committed in a topic into Parquet now",
    )
    seal.add_argument("topic", metavar="TOPIC")
    add_bootstrap_option(seal)
    bucket_segments.add_commands(segments)


def _seal(options: argparse.Namespace) -> int:
    errors: list[str] = []
    sealed: dict[int, int] = {}
    for address in _http_addresses(bootstrap(options), errors):
        try:
            sealed.update(_seal_at(address, options.topic))
        except CommandError as error:
            errors.append(str(error))
    if sealed:
        print(f"{'partition':>9}  {'sealed end':>12}")
        for partition, end in sorted(sealed.items()):
            print(f"{partition:>9}  {end:>12,}")
    elif not errors:
        errors.append(f"nobody leads a partition of {options.topic!r} just now: try again")
    for message in dict.fromkeys(errors):
        complain(message)
    return FAILED if errors else OK


def _http_addresses(bootstrap: str, errors: list[str]) -> list[str]:
    """The HTTP port of every agent, from its broker configs; *errors* gets who did not tell.

    Raises:
        CommandError: nobody answers, or it is no driftlog that does.
    """
    connect(bootstrap)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        brokers = admin.list_topics(timeout=_ADMIN_TIMEOUT_S).brokers
    except KafkaException as error:
        raise CommandError(
            f"{bootstrap} does not answer as a Kafka broker does ({error.args[0].str()}).  "
            f"{WHICH_ADDRESS}"
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
        raise CommandError(f"{bootstrap} is no driftlog agent, or an old one.  {WHICH_ADDRESS}")
    return found


def _seal_at(address: str, topic: str) -> dict[int, int]:
    name = urllib.parse.quote(topic, safe="")
    request = urllib.request.Request(f"http://{address}/topics/{name}/seal", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_SEAL_TIMEOUT_S) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as error:
        raise CommandError(json.load(error).get("error", str(error))) from error
    except OSError as error:
        raise CommandError(f"{address} does not answer: {error}") from error
    return {int(partition): int(end) for partition, end in body["sealed_end"].items()}
