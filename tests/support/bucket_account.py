"""Judges a bucket by the metadata: which objects are named, missing, or named by nothing.

    names ──▶ listing ──▶ names      missing: named before and after, and not listed
                                     unnamed: listed, and named neither before nor after

It reads the stores as `docs/formats.md` describes them, and asks no agent and no collector.

Shell.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from driftlog_metadata.schema.codec import decode_flush_record, decode_head, decode_topic
from driftlog_metadata.schema.keys import (
    FLUSHES_PREFIX,
    HEADS_PREFIX,
    SESSIONS_PREFIX,
    TOPICS_PREFIX,
    parse_head_key,
    parse_session_key,
)
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest, SegmentListRef
from driftlog_tiering.formats.manifest_codec import decode_segment_list
from driftlog_tiering.formats.manifests import MissingManifestError, load_newest
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

_STAYS: Final = (
    layout.CLUSTER_KEY,
    "cluster/",
    "groups/",
    layout.AUDIT_PREFIX,
    layout.PRODUCER_IDS_PREFIX,
)
"""What the collector never deletes."""

COLLECTED_GRACES: Final = 7
"""After so many the collector is behind nothing that happens no more.  A deleted topic goes in two,
and what a failed attempt left in three, at a listing that comes every other grace."""

_ATTEMPTS: Final = 5


@dataclass(slots=True)
class _Names:
    """What the metadata name at one time."""

    objects: set[str] = field(default_factory=set)
    uncommitted: dict[str, int] = field(default_factory=dict)
    """Live sessions, and their heads: what is above may be committed."""
    topics: set[str] = field(default_factory=set)
    """Folders of topic files."""

    def has(self, key: str) -> bool:
        """Whether *key* is named, or may still be."""
        if key in self.objects or key.startswith(_STAYS):
            return True
        if key.startswith(layout.FLUSH_PREFIX) and key.endswith(".flush"):
            parsed = layout.parse_flush_key(key)
            return parsed.seq > self.uncommitted.get(parsed.session_id, 1 << 62)
        return key.endswith(".json") and key.rpartition("/")[0] + "/" in self.topics


@dataclass(slots=True)
class Account:
    """See the module; sizes of objects by key."""

    named: dict[str, int] = field(default_factory=dict)
    unnamed: dict[str, int] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)

    @property
    def named_bytes(self) -> int:
        return sum(self.named.values())

    @property
    def total_bytes(self) -> int:
        return self.named_bytes + sum(self.unnamed.values())

    @property
    def excess(self) -> float:
        """By how much the bucket is larger than what is named, as a fraction."""
        return self.total_bytes / max(1, self.named_bytes) - 1


async def account(metadata: MetadataStore, objects: ObjectStore) -> Account:
    """Judge the bucket, also while agents run."""
    before = await _names(metadata, objects)
    there = {info.key: info async for page in objects.list("") for info in page.objects}
    after = await _names(metadata, objects)
    found = Account(missing=(before.objects & after.objects) - there.keys())
    sessions = {_session(key) for key in there if key.endswith(".flush")}
    for key, info in there.items():
        named = before.has(key) or after.has(key) or _is_needed_head(key, sessions)
        (found.named if named else found.unnamed)[key] = info.size_bytes
    return found


def _session(key: str) -> str:
    return key.split("/")[1]


def _is_needed_head(key: str, sessions: Iterable[str]) -> bool:
    return "/final-" in key and _session(key) in sessions


async def _names(metadata: MetadataStore, objects: ObjectStore) -> _Names:
    names = _Names()
    _, heads = await metadata.get_prefix(HEADS_PREFIX)
    _, sessions = await metadata.get_prefix(SESSIONS_PREFIX)
    live = {parse_session_key(kv.key) for kv in sessions}
    committed = {parse_head_key(kv.key): decode_head(kv.value) for kv in heads}
    names.uncommitted = {session_id: committed.get(session_id, -1) for session_id in live}
    _, records = await metadata.get_prefix(FLUSHES_PREFIX)
    names.objects |= {decode_flush_record(kv.value).object_key for kv in records}
    _, topics = await metadata.get_prefix(TOPICS_PREFIX)
    for kv in topics:
        await _topic(objects, decode_topic(kv.value), names)
    return names


async def _topic(objects: ObjectStore, topic: Topic, names: _Names) -> None:
    names.topics.add(layout.topic_file_prefix(topic.name, topic.topic_id))
    for partition in range(topic.partitions):
        tp = TopicPartition(topic.topic_id, partition)
        for _ in range(_ATTEMPTS):
            try:
                manifest = await load_newest(objects, topic.name, tp)
                if manifest is not None:
                    names.objects |= await _manifest(objects, manifest)
            except (NotFoundError, MissingManifestError):
                continue  # it was superseded, and collected, meanwhile
            break


async def _manifest(objects: ObjectStore, manifest: Manifest) -> set[str]:
    """Everything that *manifest* names."""
    named = {manifest.key} | {s.key for s in manifest.segments if s.end > manifest.log_start}
    if manifest.producers is not None:
        named.add(manifest.producers.key)
    pending: list[SegmentListRef] = list(manifest.lists)
    while pending:
        ref = pending.pop()
        content = decode_segment_list(await objects.get(ref.key), ref)
        named |= {ref.key} | {s.key for s in content.segments if s.end > manifest.log_start}
        pending.extend(content.lists)
    return named


def by_kind(keys: Iterable[str]) -> dict[str, int]:
    """How many there are of each kind, for messages."""
    counts: dict[str, int] = {}
    for key in keys:
        kind = type(layout.parse_key(key)).__name__.removesuffix("Key")
        counts[kind] = counts.get(kind, 0) + 1
    return counts
