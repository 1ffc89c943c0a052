"""The collector of sealed objects, under faults, with a grace of minutes.

    faults are over ──▶ records are produced, deleted, sealed; agents end and begin; superseded
                        versions are not found for a while
      ──for some graces; the agents walk and list──▶ all is well again ──▶ the ending, in some

What is checked of every seed, at each delete that reaches the bucket, against every manifest
version that was ever there:

1. No sealed object goes whose PUT is younger than grace: an edit may still name it.
2. No object goes that an entitled reader may ask for: one of the newest version, or of a version
   that was the newest one less than a grace ago.
3. A version goes a grace after the PUT of the next one, and when what only it names is gone.

That everything that metadata names is there, `world` checks anyway; that nothing else is, `ending`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import TOPICS_PREFIX
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest, SegmentListRef
from driftlog_tiering.formats.manifest_codec import decode_manifest, decode_segment_list
from tests.simulation.chaos import expire
from tests.simulation.faults import now
from tests.simulation.final_log import read_topics
from tests.simulation.long_outages import has_long_outage

if TYPE_CHECKING:
    from tests.simulation.world import World

_FIRST, _END = 10_000, 20_000
_SHORT: Final = Grace(240_000)
_ROUNDS: Final = 8


def has_collecting(seed: int) -> bool:
    """Whether the seed has a phase of collecting."""
    return _FIRST <= seed < _END


def grace_of(seed: int) -> Grace:
    """What the seed's bucket says."""
    return _SHORT if has_long_outage(seed) or has_collecting(seed) else Grace()


async def let_collect(world: "World") -> None:
    """The phase, if the seed has one: some graces of produce, deletions and restarts."""
    if not has_collecting(world.seed):
        return
    rng = Random(f"collecting {world.seed}")
    for _ in range(_ROUNDS):
        for node in world.nodes:
            node.recover()
        for topic in (await read_topics(world)).values():
            world.produce_to(topic, batches=3)
        hidden = world.collected.later_versions()
        world.untrue.hide(hidden)
        await asyncio.sleep(rng.uniform(0.1, 0.3) * world.grace.ms / 1000)
        world.untrue.show(hidden)
        node = world.some_node()
        match rng.choice(("kill", "stop", "expire", "nothing", "nothing")):
            case "kill":
                node.kill("kill")
            case "stop" if node.process.engine is not None:
                node.process.stop()
            case "expire":
                await expire(node)
            case _:
                pass
        await asyncio.sleep(rng.uniform(0.1, 0.3) * world.grace.ms / 1000)


@dataclass(frozen=True, slots=True)
class _Version:
    put_ms: float
    names: frozenset[str]


class CollectedObjects:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._versions: dict[TopicPartition, dict[int, _Version]] = {}
        self._put_ms: dict[str, float] = {}
        """When each object was first put."""

    def put(self, key: str) -> None:
        """An object was created."""
        self._put_ms.setdefault(key, self._world.now_ms())
        parsed = _parsed(key)
        if isinstance(parsed, layout.ManifestKey):
            version = _Version(self._world.now_ms(), self._names(key))
            self._versions.setdefault(parsed.tp, {}).setdefault(parsed.version, version)

    def deleted(self, keys: Sequence[str]) -> None:
        """Objects are about to go."""
        live = {
            decode_topic(kv.value).topic_id for kv in self._world.metadata.snapshot(TOPICS_PREFIX)
        }
        live -= self._world.admin.dying
        for key in keys:
            parsed = _parsed(key)
            if isinstance(parsed, layout.ManifestKey) and parsed.tp.topic_id in live:
                self._world.count("superseded manifests collected")
                self._version_goes(key, parsed)
            elif isinstance(parsed, SEALED) and parsed.tp.topic_id in live:
                self._world.count("sealed objects collected")
                self._object_goes(key, parsed.tp)

    def allowed(self, key: str) -> bool:
        """Whether a sealed object may be there when all is collected: a version of now names it, or
        one of less than a grace ago, or it is younger itself."""
        parsed = _parsed(key)
        assert isinstance(parsed, (layout.ManifestKey, *SEALED))
        entitled = self._entitled(parsed.tp)
        if isinstance(parsed, layout.ManifestKey):
            return parsed.version in entitled
        young = self._is_young(self._put_ms.get(key, 0.0))
        return young or any(key in version.names for version in entitled.values())

    def later_versions(self) -> list[str]:
        """Of each partition the version after the oldest: walks read it next, and nothing else
        reads it where it is superseded."""
        by_partition: dict[TopicPartition, list[str]] = {}
        for key in self._put_ms:
            parsed = _parsed(key)
            if isinstance(parsed, layout.ManifestKey) and self._is_there(key):
                by_partition.setdefault(parsed.tp, []).append(key)
        ascending = [sorted(keys, reverse=True) for keys in by_partition.values()]
        return [keys[1] for keys in ascending if len(keys) > 2]

    # ── What is checked ──

    def _version_goes(self, key: str, parsed: layout.ManifestKey) -> None:
        entitled = self._entitled(parsed.tp)
        self._expect(parsed.version not in entitled, f"{key} goes within grace")
        gone = self._versions[parsed.tp].get(parsed.version)
        others = {
            name
            for number, version in self._versions[parsed.tp].items()
            if number != parsed.version and self._is_there(_key_of(parsed, number))
            for name in version.names
        }
        left = [n for n in (gone.names if gone else ()) if n not in others and self._is_there(n)]
        self._expect(not left, f"{key} goes before {left}, which nothing names then")

    def _object_goes(self, key: str, tp: TopicPartition) -> None:
        self._expect(not self._is_young(self._put_ms.get(key, 0.0)), f"{key} goes too young")
        for number, version in self._entitled(tp).items():
            self._expect(key not in version.names, f"{key} goes, and version {number} names it")

    def _entitled(self, tp: TopicPartition) -> dict[int, _Version]:
        """The newest version, and those that were the newest less than a grace ago."""
        versions = self._versions.get(tp, {})
        return {
            number: version
            for number, version in versions.items()
            if number + 1 not in versions or self._is_young(versions[number + 1].put_ms)
        }

    def _is_young(self, put_ms: float) -> bool:
        return self._world.now_ms() - put_ms < self._world.grace.ms - 1

    def _is_there(self, key: str) -> bool:
        _, error = now(self._world.bucket.stat(key))
        return error is None

    def _names(self, key: str) -> frozenset[str]:
        body, error = now(self._world.bucket.get(key))
        assert error is None
        manifest: Manifest = decode_manifest(body)
        names = {s.key for s in manifest.segments if s.end > manifest.log_start}
        if manifest.producers is not None:
            names.add(manifest.producers.key)
        pending: list[SegmentListRef] = list(manifest.lists)
        while pending:
            ref = pending.pop()
            names.add(ref.key)
            content = decode_segment_list(now(self._world.bucket.get(ref.key))[0], ref)
            names |= {s.key for s in content.segments if s.end > manifest.log_start}
            pending.extend(content.lists)
        return frozenset(names)

    def _expect(self, holds: bool, message: str) -> None:
        self._world.expect(holds, f"collected: {message}")


SEALED: Final = (layout.SegmentKey, layout.SegmentListKey, layout.ProducerSnapshotKey)


def _key_of(like: layout.ManifestKey, version: int) -> str:
    return layout.manifest_key(like.topic, like.tp, version)


def _parsed(key: str) -> layout.Key | None:
    try:
        return layout.parse_key(key)
    except ValueError:
        return None
