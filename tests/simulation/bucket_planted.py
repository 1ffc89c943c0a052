"""Bugs to be planted that take a bucket with foreign objects to be noticed (`bucket_faults`)."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest

from driftlog_agents.log.garbage import collector
from driftlog_agents.log.garbage.collector import Collector
from driftlog_agents.log.garbage.common import garbage_objects
from driftlog_agents.log.garbage.common.garbage_objects import SessionObjects
from driftlog_agents.log.garbage.deleted_topic_gc import DeletedTopicGc
from driftlog_agents.log.garbage.deletions import Deletions
from driftlog_agents.log.objects import manifest_cache as manifests
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifest_codec import CorruptManifestError
from driftlog_tiering.formats.manifests import load_at_least
from driftlog_tiering.stores.object_store import ObjectInfo, ObjectStore

Plant = Callable[[pytest.MonkeyPatch], None]


def foreign_flush_objects_are_collected(patch: pytest.MonkeyPatch) -> None:
    """The collector takes every key under flush/ for a flush object."""

    def by_session(objects: Iterable[ObjectInfo]) -> tuple[list[SessionObjects], list[str]]:
        return [SessionObjects(info.key.split("/")[1], [info]) for info in objects], []

    patch.setattr(collector, "by_session", by_session)


def foreign_objects_of_topics_are_collected(patch: pytest.MonkeyPatch) -> None:
    """The collector deletes every key of a deleted topic, whatever it is."""
    patch.setattr(DeletedTopicGc, "_is_ours", lambda *_: True)
    patch.setattr(garbage_objects, "kind_of", lambda _: "anything")


def foreign_objects_end_a_look(patch: pytest.MonkeyPatch) -> None:
    """A key that is nobody's of ours ends the collector's look."""

    async def nothing(_: Deletions, __: object) -> None:
        return None

    original = Collector._strange

    def strange(self: Collector, key: str) -> None:
        original(self, key)
        patch.setattr(Deletions, "delete", nothing)

    patch.setattr(Collector, "_strange", strange)


def foreign_objects_hide_manifests(patch: pytest.MonkeyPatch) -> None:
    """What stands first among manifests is taken for the newest one, or for damage."""

    async def first(store: ObjectStore, topic: str, tp: TopicPartition, *rest: Any) -> Manifest:
        async for page in store.list(layout.manifest_prefix(topic, tp), page_size=1):
            for info in page.objects:
                try:
                    layout.parse_manifest_key(info.key)
                except ValueError as error:
                    raise CorruptManifestError(str(error)) from error
            break
        return await load_at_least(store, topic, tp, *rest)

    patch.setattr(manifests, "load_at_least", first)


BUCKET_BUGS: Final[tuple[Plant, ...]] = (
    foreign_flush_objects_are_collected,
    foreign_objects_of_topics_are_collected,
    foreign_objects_end_a_look,
    foreign_objects_hide_manifests,
)
