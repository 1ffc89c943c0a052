"""Bugs that leave something behind, to be planted: the ending of a seed notices each (`ending`)."""

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import pytest

from driftlog_agents.log.consolidation.gc import FlushRecordGc
from driftlog_agents.log.garbage.deleted_topic_gc import DeletedTopicGc
from driftlog_agents.log.garbage.session_head_gc import SessionHeadGc
from driftlog_agents.log.garbage.unreferenced_objects import Pass, UnreferencedObjects
from driftlog_agents.topics import transactions as topic_commits

Plant = Callable[[pytest.MonkeyPatch], None]


def flush_objects_stay(patch: pytest.MonkeyPatch) -> None:
    """The collector deletes no flush object."""
    patch.setattr(Pass, "garbage", lambda *_: [])


def flush_records_stay(patch: pytest.MonkeyPatch) -> None:
    """The agent forgets no flush record, also when all of its data is sealed."""

    async def nothing(_: FlushRecordGc) -> None:
        return None

    patch.setattr(FlushRecordGc, "forget", nothing)


def partition_keys_stay(patch: pytest.MonkeyPatch) -> None:
    """The deletion of a topic leaves the keys of its partitions."""
    patch.setattr(topic_commits, "partitions_prefix", lambda topic_id: f"/nothing/{topic_id}")


def leader_keys_stay(patch: pytest.MonkeyPatch) -> None:
    """The deletion of a topic leaves the keys of its leaders."""

    def elsewhere(topic_id: UUID) -> str:
        return f"/nothing/{topic_id}"

    patch.setattr(topic_commits, "leaders_prefix", elsewhere)


def objects_of_deleted_topics_stay(patch: pytest.MonkeyPatch) -> None:
    """The collector removes the tombstone of a deleted topic, and none of its objects."""

    async def seen(_: DeletedTopicGc, __: Any, since_ms: int | None) -> int:
        return since_ms or 1

    patch.setattr(DeletedTopicGc, "_objects", seen)


def tombstones_stay(patch: pytest.MonkeyPatch) -> None:
    """The collector counts the grace of a tombstone from the present look on."""
    original = DeletedTopicGc.collect

    async def collect(
        self: DeletedTopicGc, known: UnreferencedObjects, oldest_flush_ms: int | None
    ) -> None:
        known.topics = {}
        await original(self, known, oldest_flush_ms)

    patch.setattr(DeletedTopicGc, "collect", collect)


def heads_stay(patch: pytest.MonkeyPatch) -> None:
    """Heads of dead sessions are marked and not deleted."""

    async def nothing(_: SessionHeadGc, __: Any) -> None:
        return None

    patch.setattr(SessionHeadGc, "_delete", nothing)


ENDING_BUGS: Final[tuple[Plant, ...]] = (
    flush_objects_stay,
    flush_records_stay,
    partition_keys_stay,
    leader_keys_stay,
    objects_of_deleted_topics_stay,
    tombstones_stay,
    heads_stay,
)
