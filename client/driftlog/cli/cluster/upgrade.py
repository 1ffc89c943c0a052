"""`driftlog cluster upgrade`: which release each agent runs, and the format level of the cluster.

An agent that says nothing of it is of the first release, and knows level 1.
Shell.
"""

import argparse
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    ConfigResource,
    ResourceType,
)

from driftlog.cli.common.errors import OK, CommandError
from driftlog.cli.common.output import Bad, print_json, print_table
from driftlog.cli.connection.cluster_client import ClusterClient
from driftlog.cli.connection.connection import address_of
from driftlog.cli.connection.wire import Wire

_FEATURE: Final = "driftlog.version"
_KNOWN: Final = "driftlog.format.level"
_PRESENT: Final = "driftlog.cluster.format.level"
_RELEASE: Final = "driftlog.release"
_FIRST_RELEASE: Final = "0.1.0"
_BROKER_TIMEOUT_S: Final = 5.0


def upgrade(options: argparse.Namespace) -> int:
    """Show the agents, or raise the level."""
    cluster = ClusterClient(options)
    brokers = cluster.metadata().brokers
    asked = {
        node: cluster.admin.describe_configs(
            [ConfigResource(ResourceType.BROKER, str(node))],
            request_timeout=min(cluster.timeout, _BROKER_TIMEOUT_S),
        )
        for node in sorted(brokers)
    }
    agents = [_agent(node, address_of(brokers[node]), found) for node, found in asked.items()]
    answered = [agent for agent in agents if agent["knows_level"] is not None]
    if not answered:
        raise CommandError("no agent answers")
    present = max(agent["cluster_level"] for agent in answered)
    newest = max(agent["knows_level"] for agent in answered)
    least = min(agent["knows_level"] for agent in answered)
    can_be = newest if least == newest > present and len(answered) == len(agents) else None
    raised_from = None
    if options.finalize:  # also a level that is reached: the bucket gets it, if it lacks it
        with Wire(options, answered[-1]["address"]) as wire:
            wire.raise_feature(_FEATURE, newest, int(cluster.timeout * 1000))
        if newest > present:
            raised_from, present, can_be = present, newest, None
    if options.json:
        print_json(
            {
                "format_level": present,
                "raised_from": raised_from,
                "can_be_raised_to": can_be,
                "agents": agents,
            }
        )
        return OK
    print_table(
        ("agent", "address", "release", "knows level"),
        [
            (
                agent["id"],
                agent["address"],
                agent["release"] or Bad("does not answer"),
                agent["knows_level"],
            )
            for agent in agents
        ],
    )
    print(f"format level of the cluster: {present}")
    if raised_from is not None:
        print(f"raised from {raised_from} to {present}: agents write the newer formats within 10 s")
    elif options.finalize:
        print(f"nothing is raised: {present} is the newest level that these agents know")
    elif can_be is not None:
        print(f"it can be raised to {can_be}: driftlog cluster upgrade --finalize")
    elif newest > present:
        behind = [str(a["id"]) for a in agents if a["knows_level"] != newest]
        print(f"level {newest} needs a newer release on agent {', '.join(behind)}")
    return OK


def format_levels(cluster: ClusterClient, node: int | None) -> tuple[int, int] | None:
    """The cluster's format level and the newest that agent *node* knows; None: it says neither, as
    a broker of Apache Kafka.
    """
    if node is None:
        return None
    asked = cluster.admin.describe_configs(
        [ConfigResource(ResourceType.BROKER, str(node))],
        request_timeout=min(cluster.timeout, _BROKER_TIMEOUT_S),
    )
    try:
        (configs,) = (future.result() for future in asked.values())
    except KafkaException:
        return None
    if _PRESENT not in configs:
        return None
    return int(configs[_PRESENT].value or 1), int(configs[_KNOWN].value or 1)


def _agent(node: int, address: str, asked: Any) -> dict[str, Any]:
    agent = {
        "id": node,
        "address": address,
        "release": None,
        "knows_level": None,
        "cluster_level": None,
    }
    try:
        (configs,) = (future.result() for future in asked.values())
    except KafkaException:
        return agent
    said = {name: configs[name].value for name in (_RELEASE, _KNOWN, _PRESENT) if name in configs}
    return agent | {
        "release": said.get(_RELEASE) or _FIRST_RELEASE,
        "knows_level": int(said.get(_KNOWN) or 1),
        "cluster_level": int(said.get(_PRESENT) or 1),
    }
