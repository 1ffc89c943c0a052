"""The cluster that a command connects to: its topics, partitions and offsets.

Shell.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    ClusterMetadata,
    OffsetSpec,
    TopicMetadata,
)

from driftlog.cli.common.errors import CommandError
from driftlog.cli.common.topic_names import topic_name_problem
from driftlog.cli.connection.connection import (
    WHICH_ADDRESS,
    address_of,
    connect,
    new_client,
    properties,
    reason,
    result_of,
)
from driftlog.common.similar_names import similar

EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_FIRST_S: Final = 2.0
_NO_ATTEMPT_HELPS: Final = frozenset({KafkaError._SSL, KafkaError._AUTHENTICATION})


def for_time(timestamp_ms: int) -> Any:
    """The OffsetSpec of the first record at or after that time."""
    return OffsetSpec.for_timestamp(timestamp_ms)


@dataclass(frozen=True, slots=True)
class Offset:
    """An answer of ListOffsets; -1: there is no such record."""

    offset: int
    timestamp_ms: int


class ClusterClient:
    """The cluster that the options of a command name.

    Raises:
        CommandError: its address has no Kafka listener.
        UsageError: a property is wrong.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        found = properties(options)
        self.bootstrap = str(found["bootstrap.servers"])
        options.notice.waits()
        connect(options)
        self._refused: KafkaError | None = None
        self.admin: Any = new_client(AdminClient, {**found, "error_cb": self._failed})
        if str(found.get("security.protocol", "plaintext")).lower() != "plaintext":
            self.metadata()  # reports wrong certificates and passwords

    @property
    def timeout(self) -> float:
        """Seconds for the next answer."""
        left: float = self.options.timeout.left()
        return left

    def metadata(self, topic: str | None = None) -> ClusterMetadata:
        """Brokers and topics.

        Raises:
            CommandError: no broker answers.
        """
        asked = () if topic is None else (topic,)
        timeout_s = self.timeout
        # The first attempt is short: a permanent error shows at once.
        for attempt_s in (min(_FIRST_S, timeout_s), timeout_s):
            try:
                metadata: ClusterMetadata = self.admin.list_topics(*asked, timeout=attempt_s)
            except KafkaException as error:
                failure = error
                self.admin.poll(0)  # calls `_failed`
                if self._refused is not None:
                    raise CommandError(f"{self.bootstrap}: {reason(self._refused)}") from error
            else:
                return metadata
        raise CommandError(
            f"{self.bootstrap} does not answer as a Kafka broker does ({reason(failure)}).  "
            f"{WHICH_ADDRESS}"
        ) from failure

    def _failed(self, error: KafkaError) -> None:
        """librdkafka's `error_cb`: keeps permanent errors."""
        if error.code() in _NO_ATTEMPT_HELPS:
            self._refused = error

    def topics(
        self, names: Sequence[str], metadata: ClusterMetadata | None = None
    ) -> dict[str, TopicMetadata]:
        """The topics of *names*, or all if it is empty.

        Raises:
            CommandError: one does not exist; the message has similar names.
        """
        there = (metadata or self.metadata()).topics
        if not names:
            return {name: there[name] for name in sorted(there)}
        for name in names:
            if name not in there:
                raise unknown_topic(name, there)
        return {name: there[name] for name in names}

    def offsets(
        self, wanted: Mapping[tuple[str, int], Any]
    ) -> dict[tuple[str, int], Offset | CommandError]:
        """The offset of each spec in its partition."""
        if not wanted:
            return {}
        asked = self.admin.list_offsets(
            {TopicPartition(*at): spec for at, spec in wanted.items()}, request_timeout=self.timeout
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
            CommandError: one does not exist.
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

    def known_offsets(self, wanted: Mapping[tuple[str, int], Any]) -> dict[tuple[str, int], int]:
        """As `offsets`, all or none.

        Raises:
            CommandError: one is not known.
        """
        found = {}
        for at, answer in self.offsets(wanted).items():
            if isinstance(answer, CommandError):
                raise answer
            found[at] = answer.offset
        return found


def any_broker(cluster: ClusterClient) -> str:
    """The address of one live broker."""
    brokers = cluster.metadata().brokers
    return address_of(brokers[min(brokers)])


def unknown_topic(name: str, there: Iterable[str]) -> CommandError:
    """The error for a topic that does not exist."""
    problem = topic_name_problem(name)
    if problem:
        return CommandError(f"{name!r} is not a valid topic name: {problem}")
    near = similar(name, there)
    return CommandError(
        f"topic {name!r} does not exist{near or ': `driftlog topics list` lists the topics'}"
    )
