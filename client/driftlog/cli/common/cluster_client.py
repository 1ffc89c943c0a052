"""The cluster that a command speaks to: its topics, partitions and offsets.

Shell.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    ClusterMetadata,
    OffsetSpec,
    TopicMetadata,
)

from driftlog.cli.common.connection import (
    WHICH_ADDRESS,
    address_of,
    connect,
    new_client,
    properties,
    reason,
    result_of,
)
from driftlog.cli.common.errors import CommandError, similar

EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def for_time(timestamp_ms: int) -> Any:
    """The first record that is not older."""
    return OffsetSpec.for_timestamp(timestamp_ms)


@dataclass(frozen=True, slots=True)
class Offset:
    """An answer of ListOffsets; -1: there is no such record."""

    offset: int
    timestamp_ms: int


class Cluster:
    """The cluster that the options of a command name.

    Raises:
        CommandError: nobody answers there.
        UsageError: a property is wrong.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.timeout: float = options.timeout
        self.bootstrap = str(properties(options)["bootstrap.servers"])
        connect(self.bootstrap)
        self.admin: Any = new_client(AdminClient, properties(options))

    def metadata(self, topic: str | None = None) -> ClusterMetadata:
        """Brokers and topics.

        Raises:
            CommandError: no broker answers.
        """
        asked = () if topic is None else (topic,)
        try:
            metadata: ClusterMetadata = self.admin.list_topics(*asked, timeout=self.timeout)
        except KafkaException as error:
            raise CommandError(
                f"{self.bootstrap} does not answer as a Kafka broker does ({reason(error)}).  "
                f"{WHICH_ADDRESS}"
            ) from error
        return metadata

    def topics(
        self, names: Sequence[str], metadata: ClusterMetadata | None = None
    ) -> dict[str, TopicMetadata]:
        """These topics, or all where none is named.

        Raises:
            CommandError: one is not there; with those that are called like it.
        """
        there = (metadata or self.metadata()).topics
        if not names:
            return {name: there[name] for name in sorted(there)}
        for name in names:
            if name not in there:
                raise unknown_topic(name, there)
        return {name: there[name] for name in names}

    def offsets(
        self, wanted: Mapping[tuple[str, int], Any], isolation: Any = None
    ) -> dict[tuple[str, int], Offset | CommandError]:
        """Where in their logs the specs are."""
        if not wanted:
            return {}
        more = {} if isolation is None else {"isolation_level": isolation}
        asked = self.admin.list_offsets(
            {TopicPartition(*at): spec for at, spec in wanted.items()},
            request_timeout=self.timeout,
            **more,
        )
        found: dict[tuple[str, int], Offset | CommandError] = {}
        for tp, future in asked.items():
            at = (tp.topic, tp.partition)
            try:
                answer = result_of(future, f"{tp.topic}-{tp.partition}")
                found[at] = Offset(answer.offset, answer.timestamp)
            except CommandError as error:
                found[at] = error
        return found

    def partitions(self, named: Iterable[tuple[str, list[int] | None]]) -> list[tuple[str, int]]:
        """Topics, and partitions of each (None: all), as pairs; each once.

        Raises:
            CommandError: one is not there.
        """
        wanted = list(named)
        topics = self.topics(list(dict.fromkeys(name for name, _ in wanted))) if wanted else {}
        found: dict[tuple[str, int], None] = {}
        for name, which in wanted:
            there = sorted(topics[name].partitions)
            for partition in there if which is None else which:
                if partition not in there:
                    raise CommandError(
                        f"{name} has no partition {partition}: it has 0 to {len(there) - 1}"
                    )
                found[name, partition] = None
        return list(found)

    def known_offsets(
        self, wanted: Mapping[tuple[str, int], Any], isolation: Any = None
    ) -> dict[tuple[str, int], int]:
        """As `offsets`, of all or none.

        Raises:
            CommandError: one cannot be told.
        """
        found = {}
        for at, answer in self.offsets(wanted, isolation).items():
            if isinstance(answer, CommandError):
                raise answer
            found[at] = answer.offset
        return found


def any_broker(cluster: Cluster) -> str:
    """The address of one that is there."""
    brokers = cluster.metadata().brokers
    return address_of(brokers[min(brokers)])


def unknown_topic(name: str, there: Iterable[str]) -> CommandError:
    """There is no such topic."""
    near = similar(name, there)
    return CommandError(
        f"there is no topic {name!r}{near or ': driftlog topics list shows what is'}"
    )
