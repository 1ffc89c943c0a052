"""How far the topics and configs of a cluster may grow: partitions, and bytes that are stored.

    a topic is created or changed ──▶ check ──▶ reserve ──▶ admit ──▶ done ──▶ seen by the watch
    configs of a broker or group ───▶ check ──────────────▶ admit

1. Only growth is refused: a change that makes nothing larger is made, and so is a deletion.
2. Growth by this agent's changes counts until its watch has seen it.  Changes at several agents at
   the same moment may pass a limit together.
3. While produce is refused for want of room in the metadata store, nothing is put that is not
   smaller than what it replaces: etcd keeps both until it compacts.  Its quota has room for
   deletions then, which put tombstones.
4. What changes write counts, with the writes of groups, for the bytes that an agent's clients may
   write a second (`Quota.wait_s`).  One change waits for that, and the others for their turn: the
   writes of groups wait for one change at a time.

Shell.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.catalog import TopicCatalog
from driftlog_agents.topics.host import TopicHost
from driftlog_agents.topics.validation import MAX_PARTITIONS, check_total
from driftlog_metadata.schema.codec import encode_tombstone, encode_topic
from driftlog_metadata.schema.keys import deleted_key, topic_key
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.quota import Quota, QuotaRoom

MAX_BYTES: Final = "driftlog.max.configs.bytes"

_PARTITION_BYTES: Final = 500
"""What is written to the metadata store for a partition: its two keys, with a change of its leader,
and their deletion (measured: 530)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What a change adds to the cluster, and what it writes."""

    partitions: int = 0
    stored_bytes: int = 0
    """Of keys and values in the metadata store."""
    written_bytes: int = 0
    """Of keys and values that are put or deleted; 0: nothing is."""
    smaller: bool = False
    """Whether something is deleted, or put in place of something larger."""


def growth_of(before: Topic | None, after: Topic) -> Growth:
    """The growth by a topic that is created (*before* is None) or changed."""
    if before == after:
        return Growth()
    size_bytes = len(topic_key(after.name)) + len(encode_topic(after))
    there, there_bytes = 0, 0
    if before is not None:
        there = before.partitions
        there_bytes = len(topic_key(before.name)) + len(encode_topic(before))
    added = after.partitions - there
    return Growth(
        partitions=added,
        stored_bytes=max(size_bytes - there_bytes, 0),
        written_bytes=size_bytes + added * _PARTITION_BYTES,
        smaller=size_bytes < there_bytes,
    )


def deletion_of(topic: Topic) -> Growth:
    """What the deletion of a topic writes, beside what `growth_of` counted for its partitions."""
    tombstone = len(deleted_key(topic.topic_id)) + len(encode_tombstone(topic))
    return Growth(written_bytes=tombstone + len(topic_key(topic.name)), smaller=True)


class TopicBudget:
    """See the module."""

    def __init__(self, host: TopicHost, known: TopicCatalog) -> None:
        self._host = host
        self._known = known
        self._partitions = 0
        """Partitions that changes add which are not in the catalog yet."""
        self._bytes = 0
        """The same of bytes."""
        self._unseen: deque[tuple[int, Growth]] = deque()
        """Of both, the revision and the growth of changes that are done."""
        self._turn = asyncio.Lock()

    def check(self, quota: Quota, growth: Growth) -> None:
        """Check that the cluster may grow.

        Raises:
            RefusedError: POLICY_VIOLATION.
        """
        self._check_room(quota, growth)
        if growth.partitions > 0:
            self.check_partitions(growth.partitions)
        if growth.partitions > 0 or growth.stored_bytes > 0:
            self._check_bytes(growth.stored_bytes)

    async def admit(self, quota: Quota, growth: Growth) -> None:
        """Wait until the change may be written, which follows at once.

        Raises:
            RefusedError: POLICY_VIOLATION: the metadata store has become nearly full.
        """
        if not growth.written_bytes:
            return
        clock = asyncio.get_running_loop()
        async with self._turn:
            if (wait_s := quota.wait_s(clock.time())) > 0:
                await asyncio.sleep(wait_s)
            self._check_room(quota, growth)
            quota.wrote(growth.written_bytes, clock.time())

    def check_partitions(self, added: int, reserved: int = 0) -> None:
        """Check that the cluster may have *added* more partitions, beside *reserved* ones.

        Raises:
            RefusedError: POLICY_VIOLATION.
        """
        self._take_seen()
        there = self._known.partitions + self._partitions + reserved
        agents = len(self._host.view.serving_agents())
        most = self._host.settings.limits.driftlog_max_partitions
        try:
            check_total(there, added, agents, most)
        except RefusedError:
            self._host.refusals.count(MAX_PARTITIONS)
            raise

    def reserve(self, growth: Growth) -> None:
        """A change begins that makes the cluster grow."""
        self._partitions += growth.partitions
        self._bytes += growth.stored_bytes

    def release(self, growth: Growth, revision: int | None) -> None:
        """The change is over; *revision*: of the change, if it was made."""
        if revision is None or not (growth.partitions or growth.stored_bytes):
            self._partitions -= growth.partitions
            self._bytes -= growth.stored_bytes
        else:
            self._unseen.append((revision, growth))

    def _check_room(self, quota: Quota, growth: Growth) -> None:
        if quota.room is QuotaRoom.REFUSING and growth.written_bytes and not growth.smaller:
            raise self._refused(
                "the metadata store is nearly full: no topic is created or extended, and configs "
                "may only be deleted or become smaller, until it has more room; the agent's log "
                "says how to make room"
            )

    def _check_bytes(self, added: int) -> None:
        self._take_seen()
        there = self._host.view.stored_bytes + self._bytes
        most = self._host.settings.limits.driftlog_max_configs_bytes
        if there + added > most:
            raise self._refused(
                f"The topics and configs of the cluster have {there} bytes; {added} more are over "
                f"{MAX_BYTES} ({most}): delete topics or configs.  A deleted topic counts until "
                "its objects are deleted."
            )

    def _refused(self, why: str) -> RefusedError:
        self._host.refusals.count(MAX_BYTES)
        return RefusedError(ErrorCode.POLICY_VIOLATION, why)

    def _take_seen(self) -> None:
        """What the watch has seen is not reserved any more."""
        seen = self._host.view.topics_revision
        while self._unseen and self._unseen[0][0] <= seen:
            _, growth = self._unseen.popleft()
            self._partitions -= growth.partitions
            self._bytes -= growth.stored_bytes
