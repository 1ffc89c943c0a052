"""`Admin.topics`.

Shell.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from confluent_kafka import TopicCollection
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from driftlog.admin.admin_link import AdminLink
from driftlog.common.records import TopicPartition, to_ms
from driftlog.consumer.lookups import Where
from driftlog.errors import TopicExistsError, UnknownTopicError


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, and the node ids of its brokers."""

    partition: int
    leader: int | None
    """None: it has no leader at the moment."""
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic."""

    name: str
    topic_id: str
    internal: bool
    partitions: tuple[Partition, ...]


class Topics:
    """`Admin.topics`: the topics of a cluster."""

    def __init__(self, link: AdminLink) -> None:
        self._link = link

    def list(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, in order.

        Args:
            internal: True: with Kafka's own, such as ``__consumer_offsets``.
        """
        names = self._link.metadata().topics
        return sorted(name for name in names if internal or not name.startswith("__"))

    def describe(self, *names: str) -> dict[str, Topic]:
        """Those topics, by name; without names: all topics that `list` returns.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        wanted = list(dict.fromkeys(names)) or self.list()
        if not wanted:
            return {}
        found = self._link.each(
            wanted,
            lambda handle, names: handle.describe_topics(
                TopicCollection(names), request_timeout=self._link.timeout_s
            ),
            lambda name: f"describe topic {name!r}",
        )
        return {name: _topic(described) for name, described in found.items()}

    def create(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, str | int | bool] | None = None,
        if_not_exists: bool = False,
        validate_only: bool = False,
    ) -> bool:
        """Create a topic; returns False where *if_not_exists* found it.

        Args:
            partitions, replication_factor: None: the cluster's defaults.
            configs: such as ``{"retention.ms": 86_400_000}``; names and units are Kafka's.
            if_not_exists: an existing topic of that name is no error, whatever its partitions.
            validate_only: check the topic, and do not create it.

        Raises:
            TopicExistsError: a topic of that name exists.
            InvalidConfigError: there is no such config, or it does not take the value.
            RequestError: the name, the partitions or the replication factor are not possible.
        """
        topic = NewTopic(
            name,
            -1 if partitions is None else partitions,
            -1 if replication_factor is None else replication_factor,
            config={key: text(value) for key, value in (configs or {}).items()},
        )
        timeout_s = self._link.timeout_s
        try:
            self._link.ask(
                f"create topic {name!r}",
                lambda handle: handle.create_topics(
                    [topic],
                    operation_timeout=timeout_s,
                    request_timeout=timeout_s,
                    validate_only=validate_only,
                ),
            )
        except TopicExistsError:
            if not if_not_exists:
                raise
            return False
        if not validate_only:
            self._link.until_shown(lambda: name in self.list(internal=True))
        return True

    def delete(self, *names: str, if_exists: bool = False) -> None:
        """Delete topics and all their records.

        Raises:
            UnknownTopicError: there is no such topic; the others are deleted.
            ValueError: no topic is named.
        """
        if not names:
            raise ValueError("name at least one topic")
        wanted = list(dict.fromkeys(names))
        if if_exists:
            there = set(self.list(internal=True))
            wanted = [name for name in wanted if name in there]
        if wanted:
            timeout_s = self._link.timeout_s
            self._link.each(
                wanted,
                lambda handle, names: handle.delete_topics(
                    names, operation_timeout=timeout_s, request_timeout=timeout_s
                ),
                lambda name: f"delete topic {name!r}",
            )
            self._link.until_shown(lambda: not set(wanted) & set(self.list(internal=True)))

    def add_partitions(self, name: str, total: int) -> None:
        """Give the topic *total* partitions, more than it has.

        New records of a key may go to another partition than its old ones, which stay.

        Raises:
            UnknownTopicError: there is no such topic.
            RequestError: it has *total* partitions or more.
        """
        timeout_s = self._link.timeout_s
        self._link.ask(
            f"increase topic {name!r} to {total} partitions",
            lambda handle: handle.create_partitions(
                [NewPartitions(name, total)], operation_timeout=timeout_s, request_timeout=timeout_s
            ),
        )
        self._link.until_shown(lambda: len(self.describe(name)[name].partitions) >= total)

    def offsets(self, name: str, where: Where = "end") -> dict[int, int]:
        """The offset of a place in each partition, by partition.

        Args:
            where: a time (the first record at or after it; none: the end), "beginning" or "end".

        Raises:
            UnknownTopicError: there is no such topic.
            ValueError: the time has no zone.
        """
        partitions = [
            TopicPartition(name, p.partition) for p in self.describe(name)[name].partitions
        ]
        found = offsets(self._link, dict.fromkeys(partitions, where))
        return {tp.partition: offset for tp, offset in sorted(found.items())}

    def delete_records(self, name: str, before: Mapping[int, int | str]) -> dict[int, int]:
        """Delete the records below an offset; returns the new first offsets, by partition.

        Args:
            before: the offset by partition; "end": all records of it.

        Raises:
            UnknownTopicError: there is no such topic or partition.
            RequestError: an offset lies beyond the end.
        """
        places = [
            Place(name, partition, -1 if offset == "end" else int(offset))
            for partition, offset in before.items()
        ]
        done: dict[Any, Any] = self._link.each(
            places,
            lambda handle, places: handle.delete_records(
                places, operation_timeout=self._link.timeout_s, request_timeout=self._link.timeout_s
            ),
            lambda place: f"delete records of {place.topic}-{place.partition}",
        )
        return {place.partition: answer.low_watermark for place, answer in done.items()}


def offsets(link: AdminLink, places: Mapping[TopicPartition, Where]) -> dict[TopicPartition, int]:
    """The offsets of places, by partition.

    Raises:
        UnknownTopicError: there is no such partition.
        ValueError: an offset is negative, or a time has no zone.
    """
    asked = {tp: _spec(where) for tp, where in places.items() if not isinstance(where, int)}
    known = {tp: where for tp, where in places.items() if isinstance(where, int)}
    if any(offset < 0 for offset in known.values()):
        raise ValueError("an offset is not negative")
    if not asked:
        return known
    specs = {Place(*tp): spec for tp, spec in asked.items()}
    answers: dict[Any, Any] = link.each(
        specs,
        lambda handle, places: handle.list_offsets(
            {place: specs[place] for place in places}, request_timeout=link.timeout_s
        ),
        lambda place: f"list offsets of {place.topic}-{place.partition}",
    )
    found = {TopicPartition(p.topic, p.partition): a.offset for p, a in answers.items()}
    beyond = [tp for tp, offset in found.items() if offset < 0]
    ends: dict[TopicPartition, Where] = dict.fromkeys(beyond, "end")
    return known | found | (offsets(link, ends) if ends else {})


def missing(names: Iterable[str], there: Iterable[str]) -> None:
    """Raise for the first of *names* that is not *there*.

    Raises:
        UnknownTopicError: it is not.
    """
    known = set(there)
    for name in names:
        if name not in known:
            raise UnknownTopicError(
                f"topic {name!r} does not exist: Admin().topics.list() shows the topics"
            )


def text(value: str | int | bool) -> str:
    """A config's value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spec(where: datetime | str) -> Any:
    if isinstance(where, datetime):
        return OffsetSpec.for_timestamp(to_ms(where))
    if where == "beginning":
        return OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    if where == "end":
        return OffsetSpec.latest()  # type: ignore[no-untyped-call]
    raise ValueError(f"not a position in a partition: {where!r}")


def _topic(found: Any) -> Topic:
    return Topic(
        found.name,
        str(found.topic_id),
        bool(found.is_internal),
        tuple(
            Partition(
                partition.id,
                None
                if partition.leader is None or partition.leader.id < 0
                else partition.leader.id,
                _ids(partition.replicas),
                _ids(partition.isr),
            )
            for partition in found.partitions
        ),
    )


def _ids(nodes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(node.id for node in nodes)
