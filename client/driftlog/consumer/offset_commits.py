"""A group's commits: in the background at an interval, or awaited and retried.

Shell.
"""

import time
from collections.abc import Mapping
from typing import Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from driftlog.common.connection import LOG, kafka_error
from driftlog.common.records import TopicPartition
from driftlog.common.settings import ConsumerSettings
from driftlog.consumer.lookups import TRANSIENT
from driftlog.consumer.positions import Positions
from driftlog.errors import CommitError, advice, reason

_RETRY_S: Final = 0.1


class OffsetCommits:
    """Commits offsets of one group, and marks them in *positions*."""

    def __init__(self, group: str | None, positions: Positions, settings: ConsumerSettings) -> None:
        self._group = group
        self._positions = positions
        self._settings = settings
        self._background_at = time.monotonic()

    def start(self) -> None:
        """Start the interval of background commits."""
        self._background_at = time.monotonic()

    def in_background_if_due(self, handle: confluent_kafka.Consumer) -> None:
        """Commit processed records, if `commit_interval_ms` has passed."""
        now = time.monotonic()
        if (now - self._background_at) * 1000 < self._settings.commit_interval_ms:
            return
        self._background_at = now
        offsets = self._positions.to_commit()
        if offsets:
            try:
                handle.commit(offsets=places(offsets), asynchronous=True)
            except KafkaException as error:
                LOG.warning("group %s: retrying a commit later: %s", self._group, error)

    def answered(self, error: KafkaError | None, answer: list[Place]) -> None:
        """librdkafka's `on_commit`: the answer to a commit in the background."""
        done = {
            TopicPartition(place.topic, place.partition): place.offset
            for place in answer
            if place.error is None and error is None
        }
        self._positions.committed(done)
        errors = [e for e in (error, *(place.error for place in answer)) if e is not None]
        if errors and errors[0].code() != KafkaError._NO_OFFSET:
            LOG.warning(
                "group %s: a commit failed: %s. %s The next commit includes these offsets.",
                self._group,
                reason(errors[0]),
                advice(errors[0].code()),
            )

    def now(self, handle: confluent_kafka.Consumer, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit *offsets* and wait; retries for `commit_timeout_ms`.

        Raises:
            CommitError: at least one is not committed.
        """
        if not offsets:
            return
        deadline = time.monotonic() + self._settings.commit_timeout_ms / 1000
        while True:
            try:
                answer = handle.commit(offsets=places(offsets), asynchronous=False)
                failed = next((place.error for place in answer if place.error is not None), None)
            except KafkaException as error:
                failed = kafka_error(error)
            if failed is None:
                self._positions.committed(offsets)
                return
            if failed.code() not in TRANSIENT or time.monotonic() > deadline:
                raise CommitError(
                    f"group {self._group!r} could not commit: {reason(failed)}. "
                    f"{advice(failed.code())}",
                    code=failed.code(),
                    retriable=failed.code() in TRANSIENT,
                )
            time.sleep(_RETRY_S)


def places(offsets: Mapping[TopicPartition, int]) -> list[Place]:
    """*offsets* in librdkafka's type."""
    return [Place(*tp, offset) for tp, offset in offsets.items()]
