"""The HTTP ports of all agents, as their broker configs have them.

Shell.
"""

from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    ConfigResource,
    ResourceType,
)

from driftlog.cli.connection import WHICH_ADDRESS, connect
from driftlog.cli.errors import CommandError

CHANGE_HEADERS: Final = {"X-Driftlog": "cli"}
"""Of requests that change something: an agent refuses those that a web page can send."""

_HTTP_CONFIG: Final = "driftlog.http.address"
_ADMIN_TIMEOUT_S: Final = 10


def http_addresses(bootstrap: str, errors: list[str]) -> list[str]:
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
                f"({error.args[0].str()}): it is not asked about what it leads.  Try again when it "
                f"is back, or when others lead that"
            )
            continue
        entry = configs.get(_HTTP_CONFIG)
        if entry is not None and entry.value:
            found.append(str(entry.value))
    if not found and not errors:
        raise CommandError(f"{bootstrap} is no driftlog agent, or an old one.  {WHICH_ADDRESS}")
    return found
