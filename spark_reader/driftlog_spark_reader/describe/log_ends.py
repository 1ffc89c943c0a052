"""The ends of a topic's logs, as the agents say them.

Shell.
"""

from collections.abc import Mapping

from driftlog import Admin

_BOOTSTRAP = "bootstrap.servers"


def log_ends(kafka: str | Mapping[str, str], topic: str) -> dict[int, int]:
    """The offset behind the last record of each partition (ListOffsets, latest).

    Args:
        kafka: the agents' address, or librdkafka's configs, with or without ``kafka.`` before them.

    Raises:
        ValueError: there is no address, or a config that does not exist.
        DriftlogError: the agents do not answer, or do not know the topic.
    """
    given = {_BOOTSTRAP: kafka} if isinstance(kafka, str) else kafka
    configs = {name.removeprefix("kafka."): value for name, value in given.items()}
    address = configs.pop(_BOOTSTRAP, None)
    if not address:
        raise ValueError("kafka has no bootstrap.servers: give the agents' address")
    with Admin(bootstrap_servers=address, config=configs) as admin:
        return admin.topics.offsets(topic)
