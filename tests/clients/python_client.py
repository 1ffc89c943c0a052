"""What the tests of `driftlog.Producer` and the others have in common.

Shell.
"""

import time
import uuid
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from driftlog import Admin, Consumer, Producer, Record
from driftlog.common.settings import ConsumerSettings

QUICK = ConsumerSettings(fetch_wait_max_ms=50, commit_interval_ms=200, session_timeout_ms=6_000)


def new_topic(servers: str, partitions: int = 1, **configs: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=dotted)]).values():
        future.result(30)
    return name


def write(servers: str, topic: str, values: list[bytes], partition: int | None = None) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for value in values:
            producer.produce(topic, value, partition=partition)


def values_of(records: list[Record[bytes, bytes]]) -> list[bytes | None]:
    return [record.value for record in records]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def committed(servers: str, group: str, topic: str, partition: int = 0) -> int:
    """What the group has committed, as another client sees it; -1001: nothing."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False}
    )
    try:
        place = confluent_kafka.TopicPartition(topic, partition)
        return consumer.committed([place], 30)[0].offset
    finally:
        consumer.close()


def member(servers: str, topic: str, group: str, **more: Any) -> Consumer:
    arguments = {"from_beginning": True, "settings": QUICK, **more}
    return Consumer(topic, group=group, bootstrap_servers=servers, **arguments)


def wait_until_left(servers: str, *groups: str) -> None:
    """Wait until no group has a member: theirs, which do not read, were silent for too long."""
    deadline = time.monotonic() + 60
    with Admin(bootstrap_servers=servers) as admin:
        while any(g.group in groups and g.state != "Empty" for g in admin.groups.list()):
            assert time.monotonic() < deadline, "a silent member is still there"
            time.sleep(0.2)
