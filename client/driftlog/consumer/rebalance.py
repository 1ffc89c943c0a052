"""Callbacks for the assignment and the revocation of a group's partitions.

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        store.flush()          # the results of this member so far
        consumer.commit()      # before the next member begins

    Consumer("flights", group="board", rebalance=RebalanceCallbacks(on_revoke=revoked))

Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from driftlog.common.records import TopicPartition

RebalanceEvent = Literal["assign", "revoke", "lost"]
RebalanceCallback = Callable[[Any, list[TopicPartition]], Any]
"""Called with the consumer and the partitions.  `AsyncConsumer` awaits what it returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceCallbacks:
    """Called during a read, or during `close`; the group waits for them.

    A callback may `commit`, `seek`, `pause`, `resume` and get positions; it may not read records.
    It runs in the thread that reads; callbacks of `AsyncConsumer` run in the event loop, and may be
    coroutine functions.  What a callback raises, the read or `close` raises; the assignment or
    revocation is completed all the same.  A callback that takes longer than `max_poll_interval_ms`
    costs the member its place in the group.
    """

    on_assign: RebalanceCallback | None = None
    """Called after the lookup of offsets, before the first record: a `seek` here decides where
    reading begins."""

    on_revoke: RebalanceCallback | None = None
    """Called while the partitions are still this member's: `commit` works.  With `auto_commit`, the
    consumer commits processed records afterwards."""

    on_lost: RebalanceCallback | None = None
    """Called when the group has given the partitions to others, after a silence of this member:
    `commit` raises `CommitError`.  None: `on_revoke` is called in its place, as confluent-kafka and
    Kafka's Java client do."""

    def of(self, event: RebalanceEvent) -> RebalanceCallback | None:
        """The callback for *event*."""
        match event:
            case "assign":
                return self.on_assign
            case "revoke":
                return self.on_revoke
            case "lost":
                return self.on_lost or self.on_revoke
