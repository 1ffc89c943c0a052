"""A lost manifest is damage, and a seal that goes on is none.

If it failed: `driftlog verify` would call a log right whose records no reader finds any more.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import encode_footer
from driftlog_tiering.formats.manifest import AddSegments, SegmentRef
from driftlog_tiering.stores.object_store import Listing, ObjectStore
from driftlog_tiering.verification.findings import Damage, DamageKind, PartitionReport
from driftlog_tiering.verification.lost_manifests import LostManifests
from driftlog_tiering.verification.object_reads import ObjectReads
from driftlog_tiering.verification.partition_verifier import PartitionVerifier
from tests.support.sealed_topics import Message, SealedTopic

SESSION = f"{7:032x}"


@pytest.fixture
def topic(tmp_path: Path) -> SealedTopic:
    """A topic with ten sealed records, in two segments and two manifests."""
    found = SealedTopic(str(tmp_path / "objects"), "flights").create()
    found.seal(0, 0, _messages(5))
    found.seal(0, 5, _messages(5))
    return found


def _messages(count: int) -> list[Message | None]:
    return [Message(1_700_000_000_000 + n, b"k", b"v") for n in range(count)]


def lose(topic: SealedTopic, *versions: int) -> None:
    """Delete these manifests."""
    for version in versions:
        key = layout.manifest_key(topic.name, topic.tp(0), version)
        (Path(topic.location) / key).unlink()


def flush(topic: SealedTopic, seq: int, base: int, end: int) -> None:
    """Put a flush object with the batch ``[base, end)`` of partition 0."""
    numbers = (0, 0, 0, base, end - base - 1, 0, -1, -1, -1, 1, 0, 70, 1)
    columns = [array(code, [n]) for code, n in zip("iiiqihqhiqiiq", numbers, strict=True)]
    footer = encode_footer(
        session_id=SESSION,
        seq=seq,
        committed_seq=seq - 1,
        topic_ids=(topic.topic_id,),
        columns=columns,
    )

    async def main(store: ObjectStore) -> None:
        await store.put(layout.flush_key(SESSION, seq, f"{seq:016x}"), [bytes(70), footer])

    topic.with_store(main)


def look(topic: SealedTopic, meanwhile: tuple[int, int] | None = None) -> list[Damage]:
    """What is found; *meanwhile*: a segment that has no manifest before the second look."""
    refs = [] if meanwhile is None else topic.put(0, meanwhile[0], _messages(5))

    async def main(store: ObjectStore) -> PartitionReport:
        reads = ObjectReads(store)
        report = await PartitionVerifier(reads, asyncio.to_thread).verify(topic.name, topic.tp(0))
        manifests = LostManifests(reads, pauses_s=(0.0, 0.0))
        await manifests.look(report)
        if meanwhile is not None:
            await asyncio.to_thread(_add, topic, refs)
        await manifests.settle()
        return report

    return topic.with_store(main).damage


def _add(topic: SealedTopic, refs: list[SegmentRef]) -> None:
    base, end = refs[0].base, refs[-1].end
    topic.edit(
        0, AddSegments(base=base, end=end, segments=tuple(refs), leader_epochs=(), producers=None)
    )


def test_a_log_that_is_whole_has_no_damage(topic: SealedTopic) -> None:
    """
    Also one with objects that are below its end and named by no manifest.
    """
    topic.put(0, 0, _messages(7))

    assert [] == look(topic)


@pytest.mark.parametrize(("lost", "base"), [((2,), 5), ((1, 2), 0)])
def test_a_segment_that_only_a_lost_manifest_names_shows_it(
    topic: SealedTopic, lost: tuple[int, ...], base: int
) -> None:
    """
    What it had is not known: all from the end of the one that is left.
    """
    lose(topic, *lost)

    (found,) = look(topic)

    assert (DamageKind.MISSING, base, None) == (found.kind, found.base, found.end)
    assert layout.manifest_prefix("flights", topic.tp(0)) == found.key
    assert "0005-00000000000000000010" in found.detail
    assert "accept-loss does not cover it" in found.advice


def test_an_interrupted_seal_is_no_damage(topic: SealedTopic) -> None:
    """
    Flush objects have all of its records; with a gap between them they do not.
    """
    topic.put(0, 10, _messages(5))
    flush(topic, 1, 8, 12)
    assert 1 == len(look(topic))

    flush(topic, 2, 12, 15)

    assert [] == look(topic)


def test_a_manifest_that_is_made_meanwhile_is_seen(topic: SealedTopic) -> None:
    """
    A segment is there before the manifest that names it.
    """
    assert [] == look(topic, meanwhile=(10, 15))


def test_a_log_that_is_sealed_on_while_others_are_verified_has_no_damage(
    topic: SealedTopic,
) -> None:
    """
    An interrupted seal has left 10 to 20.  Another one sealed 10 to 15 hours before the second
    look, so flush objects have the rest only.
    """
    topic.put(0, 10, _messages(10))
    flush(topic, 2, 15, 20)

    assert [] == look(topic, meanwhile=(10, 15))


class SealedLater:
    """A store in which a seal ends when the manifest is read for the *reads*-th time."""

    def __init__(self, store: ObjectStore, topic: SealedTopic, reads: int) -> None:
        self._store = store
        self._topic = topic
        self._left = reads
        self._refs = topic.put(0, 10, _messages(5))
        self.listed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list(self, prefix: str, **how: Any) -> AsyncIterator[Listing]:
        self.listed.append(prefix)
        if prefix == layout.manifest_prefix(self._topic.name, self._topic.tp(0)):
            self._left -= 1
            if not self._left:
                await asyncio.to_thread(_add, self._topic, self._refs)
        async for page in self._store.list(prefix, **how):
            yield page


def test_a_seal_that_takes_long_makes_no_run_read_all_flush_objects(topic: SealedTopic) -> None:
    """
    A busy cluster has millions, and a seal goes on whenever one looks.
    """

    async def main(store: ObjectStore) -> tuple[list[Damage], list[str]]:
        later = await asyncio.to_thread(SealedLater, store, topic, 3)
        reads = ObjectReads(cast(ObjectStore, later))
        report = await PartitionVerifier(reads, asyncio.to_thread).verify(topic.name, topic.tp(0))
        manifests = LostManifests(reads, pauses_s=(0.0, 0.0))
        await manifests.look(report)
        await manifests.settle()
        return report.damage, later.listed

    damage, listed = topic.with_store(main)

    assert [] == damage
    assert layout.FLUSH_PREFIX not in listed
