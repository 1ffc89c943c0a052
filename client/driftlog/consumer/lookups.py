"""Requests of a consumer to the cluster: topics, offsets of times, committed offsets.

Shell.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as Place

from driftlog.common.connection import Connections, fail, kafka_error, unreachable
from driftlog.common.records import TopicPartition, to_ms
from driftlog.common.settings import ConsumerSettings
from driftlog.errors import request_error

Where = int | datetime | Literal["beginning", "end"]
"""A place in a partition: an offset, the first record at or after a time, or either end."""

TRANSIENT: Final = frozenset({-195, -193, -187, -185, -180, 5, 6, 7, 13, 14, 15, 16})
"""Transient errors: there is no connection, no leader or no coordinator at the moment."""
EARLIEST: Final = -2
LATEST: Final = -1
_RETRY_S: Final = 0.1


def check_place(where: Where) -> None:
    """Raise for an invalid place, before a request to the cluster.

    Raises:
        ValueError: an offset is negative, a time has no zone, or it is another word.
    """
    if isinstance(where, datetime):
        to_ms(where)
    elif isinstance(where, str):
        if where not in ("beginning", "end"):
            raise ValueError(
                f"a position is an offset, a time, 'beginning' or 'end', not {where!r}"
            )
    elif where < 0:
        raise ValueError(f"an offset is not negative: {where}")


class Lookups:
    """Requests that are repeated until `request_timeout_ms` while their error is transient."""

    def __init__(
        self, handle: confluent_kafka.Consumer, connections: Connections, settings: ConsumerSettings
    ) -> None:
        self._handle = handle
        self._connections = connections
        self._settings = settings

    def partitions(self, topic: str | None) -> dict[str, list[int]]:
        """The partitions of that topic, or of all topics, by name; none where it has an error.

        Raises:
            UnreachableError: no broker answered.
        """
        timeout_s = self._settings.request_timeout_ms / 1000
        try:
            listed = self._handle.list_topics(topic or "", timeout_s)
        except KafkaException as error:
            self._handle.poll(0)
            raise unreachable(
                self._connections.servers, timeout_s, self._connections.last_error
            ) from error
        return {
            name: [] if found.error is not None else list(found.partitions)
            for name, found in listed.topics.items()
        }

    def resolve(self, places: Mapping[TopicPartition, Where]) -> dict[TopicPartition, int]:
        """Offsets of places, which `check_place` has passed.

        Raises:
            DriftlogError: the cluster did not say.
        """
        asked: dict[TopicPartition, int] = {}
        offsets: dict[TopicPartition, int] = {}
        for tp, where in places.items():
            if isinstance(where, datetime):
                asked[tp] = to_ms(where)
            elif where == "beginning":
                asked[tp] = EARLIEST
            elif where == "end":
                asked[tp] = LATEST
            else:
                offsets[tp] = where
        offsets |= self.offsets(asked)
        return offsets

    def offsets(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets of timestamps, EARLIEST and LATEST; a time after the last record gives the end.

        Raises:
            DriftlogError: the cluster did not say.
        """
        if not asked:
            return {}
        places = [Place(*tp, timestamp) for tp, timestamp in asked.items()]
        answer = self.until_done(
            "list offsets",
            lambda: self._handle.offsets_for_times(
                places, self._settings.request_timeout_ms / 1000
            ),
        )
        found: dict[TopicPartition, int] = {}
        for place in answer:
            if place.error is not None:
                raise request_error(f"list offsets of {place.topic}", place.error)
            found[TopicPartition(place.topic, place.partition)] = place.offset
        beyond = [tp for tp, offset in found.items() if offset < 0]
        return found | (self.offsets(dict.fromkeys(beyond, LATEST)) if beyond else {})

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out.

        Raises:
            DriftlogError: the cluster did not say.
        """
        answer = self.until_done(
            f"read the offsets of group {group!r}",
            lambda: self._handle.committed(
                [Place(*tp) for tp in partitions], self._settings.request_timeout_ms / 1000
            ),
        )
        found = {}
        for place in answer:
            if place.error is not None:
                raise request_error(f"read the offsets of group {group!r}", place.error)
            if place.offset >= 0:
                found[TopicPartition(place.topic, place.partition)] = place.offset
        return found

    def until_done(
        self, what: str, attempt: Callable[[], Any], also: frozenset[int] = frozenset()
    ) -> Any:
        """The answer of *attempt*, which is repeated while its error is transient or one of *also*.

        Raises:
            DriftlogError: another error, or still one after `request_timeout_ms`.
        """
        deadline = time.monotonic() + self._settings.request_timeout_ms / 1000
        while True:
            try:
                return attempt()
            except KafkaException as error:
                again = kafka_error(error).code() in TRANSIENT | also
                if not again or time.monotonic() > deadline:
                    fail(what, error)
            time.sleep(_RETRY_S)
