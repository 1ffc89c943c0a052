"""The HTTP ports of all agents, as their broker configs name them.

Shell.
"""

import argparse
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    ConfigResource,
    ResourceType,
)

from driftlog.cli.common.errors import CommandError
from driftlog.cli.connection.cluster_client import ClusterClient
from driftlog.cli.connection.connection import WHICH_ADDRESS, address_of, reason
from driftlog.cli.connection.readiness_notice import HTTP_CONFIG

_ANSWER_S: Final = 10.0


def http_addresses(options: argparse.Namespace, errors: list[str]) -> list[str]:
    """The HTTP port of every agent; agents that do not answer are added to *errors*.

    Raises:
        CommandError: no broker answers, or the brokers are not driftlog's.
    """
    cluster = ClusterClient(options)
    brokers = cluster.metadata().brokers
    found: list[str] = []
    # One call for each broker: librdkafka takes one broker in a call.
    asked = {
        node: cluster.admin.describe_configs(
            [ConfigResource(ResourceType.BROKER, str(node))],
            request_timeout=min(_ANSWER_S, cluster.timeout),
        )
        for node in brokers
    }
    for node, futures in asked.items():
        try:
            (configs,) = (future.result() for future in futures.values())
        except KafkaException as error:
            errors.append(
                f"agent {node} at {address_of(brokers[node])} does not answer ("
                f"{reason(error)}): the command leaves out the partitions that this agent "
                "leads.  Try again when it answers, or when other agents lead them"
            )
            continue
        entry = configs.get(HTTP_CONFIG)
        if entry is not None and entry.value:
            found.append(str(entry.value))
    if not found and not errors:
        raise CommandError(
            f"{cluster.bootstrap} is not a driftlog agent, or has no HTTP port.  {WHICH_ADDRESS}"
        )
    return found
