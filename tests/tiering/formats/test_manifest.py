"""Edits of a manifest give what the same edits of a plain list of segments give."""

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlog_metadata.schema.model import Cluster, TopicPartition
from driftlog_tiering.formats import layout, manifest_edits
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import (
    MANIFEST_FORMAT,
    AddSegments,
    Busy,
    Edit,
    LeaderEpoch,
    Manifest,
    ProducerSnapshotRef,
    ReplaceSegments,
    SegmentList,
    SegmentListRef,
    SegmentRef,
    SetBusy,
    SetCleanedEnd,
    SetCluster,
    SetLogStart,
    TombstoneHorizon,
    empty_manifest,
)
from driftlog_tiering.formats.manifest_codec import (
    CorruptManifestError,
    decode_manifest,
    decode_segment_list,
    encode_manifest,
    encode_segment_list,
)
from driftlog_tiering.formats.manifest_edits import (
    MAX_ENTRIES,
    AlreadyApplied,
    Applied,
    NeedsLists,
    OtherCluster,
    Void,
    apply,
)
from tests.support.clusters import AUTHOR

TP = TopicPartition(UUID("6f1d2b7e-0000-4000-8000-00000000002a"), 7)
EMPTY = empty_manifest("flights", TP)


def segment(base: int, end: int, nonce: str = "a", max_timestamp_ms: int = -1) -> SegmentRef:
    """A segment of one record per offset."""
    return SegmentRef(
        key=layout.segment_key("flights", TP, base, end, nonce),
        base=base,
        end=end,
        size_bytes=100,
        records=end - base,
        raw_bytes=1_000,
        min_timestamp_ms=max_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
    )


def add(*segments: SegmentRef, epoch: int = 0) -> AddSegments:
    """An edit that adds neighbours."""
    return AddSegments(
        base=segments[0].base,
        end=segments[-1].end,
        segments=segments,
        leader_epochs=(LeaderEpoch(epoch, segments[0].base),),
        producers=None,
    )


@dataclass
class Bucket:
    """A manifest, the lists that were stored for it, and the same as a plain list."""

    manifest: Manifest = EMPTY
    lists: dict[str, SegmentList] = field(default_factory=dict)
    model: list[SegmentRef] = field(default_factory=list)
    bodies: dict[str, bytes] = field(default_factory=dict)
    edits: int = 0
    author: Cluster = AUTHOR

    def apply(self, edit: Edit) -> Applied | AlreadyApplied | OtherCluster | Void:
        """Apply, reading lists from what was stored; a list's name is used once."""
        self.edits += 1
        read: dict[str, SegmentList] = {}
        while True:
            outcome = apply(self.manifest, edit, f"n{self.edits}", self.author, read)
            if not isinstance(outcome, NeedsLists):
                break
            for ref in outcome.refs:
                read[ref.key] = decode_segment_list(self.bodies[ref.key], ref)
        if isinstance(outcome, Applied):
            assert not outcome.lists.keys() & self.lists.keys()
            self.lists.update(outcome.lists)
            for key, content in outcome.lists.items():
                self.bodies[key] = encode_segment_list(outcome.manifest, content)
            self.manifest = outcome.manifest
        return outcome

    def named(self) -> list[SegmentRef]:
        """What the tree says, in order."""
        tree = [s for ref in self.manifest.lists for s in self._under(ref)]
        tree += self.manifest.segments
        return [s for s in tree if s.end > self.manifest.log_start]

    def _under(self, ref: SegmentListRef) -> list[SegmentRef]:
        content = self.lists[ref.key]
        below = [s for child in content.lists for s in self._under(child)]
        found = [*below, *content.segments]
        assert ref.segments == len(found)
        assert (ref.base, ref.end) == (found[0].base, found[-1].end)
        assert ref.size_bytes == sum(s.size_bytes for s in found)
        assert ref.max_timestamp_ms == max(s.max_timestamp_ms for s in found)
        assert ref.received_bytes == sum(s.received_bytes for s in found)
        return found


def test_a_segment_is_added_at_the_end_only() -> None:
    """
    An addition that does not start at the manifest's end is void: no gap, no overlap.
    """
    bucket = Bucket()
    first, second = segment(0, 10), segment(10, 20)

    outcomes = [
        type(bucket.apply(edit))
        for edit in (add(second), add(first), add(segment(5, 15)), add(second), add(second))
    ]

    assert [Void, Applied, Void, Applied, AlreadyApplied] == outcomes
    assert (2, 20, (first, second)) == (
        bucket.manifest.version,
        bucket.manifest.end,
        bucket.manifest.segments,
    )


def test_no_segments_does_not_mean_offset_0() -> None:
    """
    The end is stated: it stays where all records expired, and moves where none was left to keep.
    """
    bucket = Bucket()
    bucket.apply(add(segment(0, 10)))
    bucket.apply(SetLogStart(10))
    bucket.apply(AddSegments(base=10, end=15, segments=(), leader_epochs=(), producers=None))

    assert (15, 10, ()) == (
        bucket.manifest.end,
        bucket.manifest.log_start,
        bucket.manifest.segments,
    )


def test_a_range_of_deleted_records_moves_log_start_behind_it() -> None:
    """
    In the same version; what was before it is deleted, too.
    """
    bucket = Bucket()
    bucket.apply(add(segment(0, 10), epoch=1))
    epochs = (LeaderEpoch(2, 10),)
    bucket.apply(
        AddSegments(
            base=10, end=15, segments=(), leader_epochs=epochs, producers=None, is_deleted=True
        )
    )

    found = bucket.manifest
    assert (15, 15, (), (LeaderEpoch(2, 15),)) == (
        found.end,
        found.log_start,
        found.segments,
        found.leader_epochs,
    )


def test_the_newest_thousand_stay_and_the_oldest_spill() -> None:
    """
    1,001 segments: one list of the oldest 500, and 501 in the manifest.
    """
    bucket = Bucket()
    segments = tuple(segment(i, i + 1) for i in range(1_001))
    bucket.apply(add(*segments))

    assert [(1, 0, 500, 500)] == [
        (ref.level, ref.base, ref.end, ref.segments) for ref in bucket.manifest.lists
    ]
    assert segments[500:] == bucket.manifest.segments
    assert list(segments) == bucket.named()


@pytest.mark.verify
def test_adding_costs_the_same_at_a_thousand_and_at_half_a_million_segments() -> None:
    """
    A manifest has at most 1,000 entries a level, and an edit writes at most one list a level;
    what is deepest in the tree is replaced at the cost of its path.
    """
    bucket = Bucket()
    template = segment(0, 1)
    segments = [replace(template, key=str(i), base=i, end=i + 1) for i in range(510_000)]
    written = []
    for base in range(0, len(segments), 500):
        outcome = apply(bucket.manifest, add(*segments[base : base + 500]), "n", AUTHOR)
        assert isinstance(outcome, Applied)
        written.append(len(outcome.lists))
        bucket.manifest = outcome.manifest
        bucket.lists.update(outcome.lists)

    levels = [ref.level for ref in bucket.manifest.lists]
    assert 2 == max(written)
    assert [2] == sorted(set(levels), reverse=True)[:1]
    assert sorted(levels, reverse=True) == levels
    assert max(levels.count(level) for level in levels) <= 1_000
    assert segments == bucket.named()

    merged = segment(700, 703, "b")
    edit = ReplaceSegments(replaced=tuple(segments[700:703]), added=(merged,))
    outcome = apply(bucket.manifest, edit, "n", AUTHOR, bucket.lists)
    assert isinstance(outcome, Applied)
    assert [1, 2] == sorted(content.level for content in outcome.lists.values())
    bucket.manifest = outcome.manifest
    bucket.lists.update(outcome.lists)
    assert [*segments[:700], merged, *segments[703:]] == bucket.named()


def test_a_replacement_needs_all_that_it_replaces() -> None:
    """
    Of two compactions of the same segments the second is void, not half applied.
    """
    bucket = Bucket()
    first, second, third = segment(0, 10), segment(10, 20), segment(20, 30)
    bucket.apply(add(first, second, third))
    merged = segment(0, 20, "b")

    outcomes = [
        type(bucket.apply(ReplaceSegments(replaced=replaced, added=added)))
        for replaced, added in (
            ((first, third), (segment(0, 30, "c"),)),
            ((first, second), (merged,)),
            ((first, second), (merged,)),
            ((second, third), (segment(10, 30, "d"),)),
        )
    ]

    assert [Void, Applied, AlreadyApplied, Void] == outcomes
    assert (merged, third) == bucket.manifest.segments


def test_what_log_start_has_passed_is_not_replaced() -> None:
    """
    An expired segment may still stand in a list; a compaction of it would name it again.
    """
    bucket = Bucket()
    segments = [segment(i, i + 1) for i in range(1_001)]
    bucket.apply(add(*segments))
    bucket.apply(SetLogStart(3))

    gone = bucket.apply(ReplaceSegments(replaced=tuple(segments[1:3]), added=()))
    outcome = bucket.apply(
        ReplaceSegments(
            replaced=tuple(segments[2:4]), added=(segment(2, 3, "b"), segment(3, 4, "b"))
        )
    )

    assert isinstance(gone, Void)
    assert isinstance(outcome, Applied)
    assert [segment(3, 4, "b"), *segments[4:]] == bucket.named()


def test_log_start_never_moves_back_nor_past_the_end() -> None:
    """
    A late edit of log start changes nothing.
    """
    bucket = Bucket()
    bucket.apply(add(segment(0, 10), segment(10, 20)))

    outcomes = [type(bucket.apply(SetLogStart(offset))) for offset in (12, 5, 12, 21)]

    assert [Applied, AlreadyApplied, AlreadyApplied, Void] == outcomes
    assert [segment(10, 20)] == bucket.named()


def test_leader_epochs_are_cut_at_log_start_as_kafka_cuts_them() -> None:
    """
    The epoch that holds log start begins there; one that lies behind it whole is gone.
    """
    bucket = Bucket()
    for epoch, base in ((0, 0), (0, 10), (3, 20), (4, 30)):
        bucket.apply(add(segment(base, base + 10), epoch=epoch))
    before = bucket.manifest.leader_epochs
    bucket.apply(SetLogStart(25))
    during = bucket.manifest.leader_epochs
    bucket.apply(SetLogStart(40))
    bucket.apply(add(segment(40, 50), epoch=6))

    assert [
        (LeaderEpoch(0, 0), LeaderEpoch(3, 20), LeaderEpoch(4, 30)),
        (LeaderEpoch(3, 25), LeaderEpoch(4, 30)),
        (LeaderEpoch(6, 40),),
    ] == [before, during, bucket.manifest.leader_epochs]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_edits_do_to_the_tree_what_they_do_to_a_list(data: st.DataObject) -> None:
    """
    Additions, replacements anywhere in the tree and log starts, against a plain list of segments.
    """
    bucket = Bucket()
    for _ in range(data.draw(st.integers(1, 8))):
        base = bucket.manifest.end
        many = data.draw(st.sampled_from((1, 3, 400, 900)))
        bucket.apply(add(*(segment(i, i + 1) for i in range(base, base + many))))
        bucket.model += [segment(i, i + 1) for i in range(base, base + many)]

        start = data.draw(st.integers(0, len(bucket.model) - 1))
        run = tuple(bucket.model[start : start + data.draw(st.integers(1, 700))])
        added = tuple(
            replace(run[i], key=f"{run[i].key}.{bucket.edits}")
            for i in data.draw(st.sets(st.integers(0, len(run) - 1), max_size=3).map(sorted))
        )
        if isinstance(bucket.apply(ReplaceSegments(replaced=run, added=added)), Applied):
            bucket.model[start : start + len(run)] = added

        log_start = data.draw(st.integers(0, bucket.manifest.end))
        if isinstance(bucket.apply(SetLogStart(log_start)), Applied):
            bucket.model = [s for s in bucket.model if s.end > log_start]
        if not bucket.model:
            break

        assert bucket.model == bucket.named()
        assert bucket.manifest == decode_manifest(encode_manifest(bucket.manifest))


def test_replacements_stand_where_what_they_replace_was() -> None:
    """
    An edit of many segments makes no list longer than its limit.
    """
    bucket = Bucket()
    many = [segment(i, i + 1) for i in range(3_000)]
    for base in range(0, len(many), 100):
        bucket.apply(add(*many[base : base + 100]))
    added = tuple(replace(each, key=f"{each.key}.new") for each in many)

    bucket.apply(ReplaceSegments(replaced=tuple(many), added=added))

    assert list(added) == bucket.named()
    sizes = [len(bucket.lists[ref.key].segments) for ref in bucket.manifest.lists]
    assert max(*sizes, len(bucket.manifest.segments)) <= MAX_ENTRIES


def replaced_in(
    model: list[SegmentRef], log_start: int, edit: ReplaceSegments
) -> list[SegmentRef] | None:
    """What `ReplaceSegments` does to a plain list of the segments above log start; None: void."""
    replaced = [s for s in edit.replaced if s.end > log_start]
    base, end = edit.replaced[0].base, edit.replaced[-1].end
    within = [s for s in model if s.base < end and base < s.end]
    if not replaced or within != replaced:
        return None
    at = model.index(replaced[0])
    added = [s for s in edit.added if s.end > log_start]
    return [*model[:at], *added, *model[at + len(replaced) :]]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_late_edits_do_to_the_tree_what_they_do_to_a_list(data: st.DataObject) -> None:
    """
    Replacements that were made from an older version, in a deep tree, while log start moves: one
    is void exactly if what it replaces is not there, and names nothing below log start.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_edits, "MAX_ENTRIES", 4)
        patch.setattr(manifest_edits, "SPILLED_ENTRIES", 2)
        bucket = Bucket()
        waiting: list[ReplaceSegments] = []
        for step in range(data.draw(st.integers(1, 25))):
            match data.draw(st.sampled_from(("add", "add", "plan", "plan", "replace", "start"))):
                case "add":
                    base = bucket.manifest.end
                    new = [segment(base + 2 * i, base + 2 * i + 2) for i in range(4)]
                    bucket.apply(add(*new))
                    bucket.model += new
                case "plan" if bucket.model:
                    first = data.draw(st.integers(0, len(bucket.model) - 1))
                    run = bucket.model[first : first + data.draw(st.integers(1, 9))]
                    cuts = data.draw(st.sets(st.sampled_from(run)).map(list))
                    borders = sorted({run[0].base, run[-1].end, *(s.base for s in cuts)})
                    pieces = [segment(b, e, f"r{step}") for b, e in pairwise(borders)]
                    left = data.draw(st.sets(st.sampled_from(pieces)))
                    added = tuple(piece for piece in pieces if piece in left)
                    waiting.append(ReplaceSegments(replaced=tuple(run), added=added))
                case "replace" if waiting:
                    late = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
                    expected = replaced_in(bucket.model, bucket.manifest.log_start, late)
                    outcome = bucket.apply(late)
                    assert isinstance(outcome, Applied) == (expected is not None)
                    bucket.model = bucket.model if expected is None else expected
                case "start":
                    log_start = data.draw(st.integers(0, bucket.manifest.end))
                    bucket.apply(SetLogStart(log_start))
                    at = bucket.manifest.log_start
                    bucket.model = [s for s in bucket.model if s.end > at]
                case _:
                    continue
            assert bucket.model == bucket.named()


def test_a_format_only_rises_and_then_names_its_cluster() -> None:
    """
    An author of level 1 takes no field of format 2 away, nor does it write any before.
    """
    received = replace(segment(0, 10), received_bytes=7, footer_crc=1)
    bucket = Bucket(author=Cluster(AUTHOR.cluster_id, 1))
    bucket.apply(add(received))
    first = bucket.manifest
    bucket.author = AUTHOR
    bucket.apply(add(replace(segment(10, 20), received_bytes=7, footer_crc=2)))
    bucket.apply(SetCleanedEnd(10))
    bucket.author = Cluster(AUTHOR.cluster_id, 1)
    bucket.apply(add(replace(segment(20, 30), received_bytes=7)))
    last = bucket.manifest

    assert (1, None, [(1_000, None)]) == (
        first.format_version,
        first.cluster_id,
        [(s.received_bytes, s.footer_crc) for s in first.segments],
    )
    assert (2, AUTHOR.cluster_id, 10, [(1_000, None), (7, 2), (7, None)]) == (
        last.format_version,
        last.cluster_id,
        last.cleaned_end,
        [(s.received_bytes, s.footer_crc) for s in last.segments],
    )
    assert (first, last) == tuple(decode_manifest(encode_manifest(m)) for m in (first, last))


def test_another_clusters_edit_is_refused() -> None:
    """
    An agent of the old cluster beside a restored one changes nothing.
    """
    bucket = Bucket()
    bucket.apply(add(segment(0, 10)))
    bucket.author = Cluster("another")

    outcomes = [bucket.apply(edit) for edit in (add(segment(10, 20)), SetLogStart(5))]

    assert [OtherCluster(AUTHOR.cluster_id)] * 2 == outcomes


def test_a_restore_takes_a_partition_from_the_clusters_that_it_names() -> None:
    """
    It is the fence: every later edit of the old cluster is refused, those of a third stay.
    """
    bucket = Bucket()
    bucket.apply(add(segment(0, 10)))
    bucket.author = Cluster("another", AUTHOR.format_version)

    third = bucket.apply(SetCluster(("some other",)))
    taken = bucket.apply(SetCluster(("older", AUTHOR.cluster_id)))
    again = bucket.apply(SetCluster((AUTHOR.cluster_id,)))
    grown = bucket.apply(add(segment(10, 20)))
    bucket.author = AUTHOR

    assert OtherCluster(AUTHOR.cluster_id) == third
    assert isinstance(taken, Applied)
    assert AlreadyApplied() == again
    assert isinstance(grown, Applied)
    assert OtherCluster("another") == bucket.apply(add(segment(20, 30)))


def test_busy_is_taken_by_one() -> None:
    """
    Two compactors that read the same version do not both believe that they hold the partition.
    """
    bucket = Bucket()
    mine, other = Busy("job-1", 1_000), Busy("agent-2", 2_000)

    outcomes = [
        type(bucket.apply(edit))
        for edit in (
            SetBusy(None, mine),
            SetBusy(None, mine),
            SetBusy(None, other),
            SetBusy(mine, other),
            SetBusy(other, None),
        )
    ]

    assert [Applied, AlreadyApplied, Void, Applied, Applied] == outcomes
    assert bucket.manifest.busy is None


def test_cleaned_end_moves_with_the_replacement_and_never_back() -> None:
    """
    A compaction that is repeated from an older end makes no record dirty again.
    """
    bucket = Bucket()
    bucket.apply(add(segment(0, 10), segment(10, 20)))
    edit = ReplaceSegments(replaced=(segment(0, 10),), added=(segment(0, 10, "b"),), cleaned_end=10)

    outcomes = [type(bucket.apply(each)) for each in (edit, SetCleanedEnd(5), SetCleanedEnd(21))]

    assert [Applied, AlreadyApplied, Void] == outcomes
    assert 10 == bucket.manifest.cleaned_end


# ── What is stored ──

GOLDEN = Manifest(
    version=7,
    nonce="5b1c",
    topic="flights",
    tp=TP,
    end=400,
    log_start=3,
    leader_epochs=(LeaderEpoch(0, 3), LeaderEpoch(2, 310)),
    producers=ProducerSnapshotRef(400, "p.snapshot"),
    lists=(
        SegmentListRef(
            key="l.json",
            level=1,
            base=0,
            end=100,
            segments=500,
            size_bytes=1,
            records=2,
            raw_bytes=3,
            min_timestamp_ms=-1,
            max_timestamp_ms=5,
        ),
    ),
    segments=(
        SegmentRef(
            key="s.raw",
            kind=SegmentKind.RAW,
            base=100,
            end=400,
            size_bytes=6,
            records=7,
            raw_bytes=8,
            min_timestamp_ms=9,
            max_timestamp_ms=10,
            max_timestamp_offset=11,
            codec="zstd",
            format_version=1,
        ),
    ),
)
GOLDEN_BYTES = (
    b'{"format":"driftlog.manifest","format_version":1,"version":7,"nonce":"5b1c",'
    b'"topic":"flights","topic_id":"6f1d2b7e-0000-4000-8000-00000000002a","partition":7,'
    b'"end":400,"log_start":3,"leader_epochs":[[0,3],[2,310]],'
    b'"producers":{"offset":400,"key":"p.snapshot"},'
    b'"lists":[{"key":"l.json","level":1,"base":0,"end":100,"segments":500,"size_bytes":1,'
    b'"records":2,"raw_bytes":3,"min_timestamp_ms":-1,"max_timestamp_ms":5}],'
    b'"segments":[{"key":"s.raw","kind":"raw","base":100,"end":400,"size_bytes":6,"records":7,'
    b'"raw_bytes":8,"min_timestamp_ms":9,"max_timestamp_ms":10,"max_timestamp_offset":11,'
    b'"codec":"zstd","format_version":1}],"crc32":"107a7c70"}\n'
)


GOLDEN_2 = replace(
    GOLDEN,
    format_version=2,
    cluster_id="d41d8c",
    cleaned_end=250,
    busy=Busy("job-1", 1_700_000_000_000),
    lists=(replace(GOLDEN.lists[0], received_bytes=12),),
    segments=(
        replace(
            GOLDEN.segments[0],
            received_bytes=13,
            horizons=(TombstoneHorizon(200, 14), TombstoneHorizon(400, 15)),
            merges=1,
            footer_crc=16,
        ),
    ),
)
GOLDEN_BYTES_2 = (
    GOLDEN_BYTES.split(b',"crc32"')[0]
    .replace(b'"format_version":1,"version"', b'"format_version":2,"version"')
    .replace(b'"max_timestamp_ms":5}', b'"max_timestamp_ms":5,"received_bytes":12}')
    .replace(
        b'"codec":"zstd","format_version":1}',
        b'"codec":"zstd","format_version":1,"received_bytes":13,"horizons":[[200,14],[400,15]]'
        b',"merges":1,"footer_crc":16}',
    )
    + b',"cluster_id":"d41d8c","cleaned_end":250,'
    b'"busy":{"by":"job-1","until_ms":1700000000000},"crc32":"45496b7c"}\n'
)


@pytest.mark.parametrize(
    ("manifest", "stored"), [(GOLDEN, GOLDEN_BYTES), (GOLDEN_2, GOLDEN_BYTES_2)]
)
def test_a_manifest_is_stored_as_these_bytes(manifest: Manifest, stored: bytes) -> None:
    """
    A stored format: these bytes are in buckets, and stay readable.
    """
    assert stored == encode_manifest(manifest)
    assert manifest == decode_manifest(stored)


offsets = st.integers(0, 2**62)
timestamps = st.integers(-1, 2**63 - 1)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Any manifest that keeps the invariants."""
    bounds = sorted(draw(st.sets(offsets, max_size=8)))
    ranges = list(zip(bounds[::2], bounds[1::2], strict=False))
    end = draw(st.integers(bounds[-1] if bounds else 0, 2**63 - 1))
    split = draw(st.integers(0, len(ranges)))
    sizes = {name: draw(offsets) for name in ("size_bytes", "records", "raw_bytes")}
    second = draw(st.booleans())
    if second:
        sizes["received_bytes"] = draw(offsets)
    times = {name: draw(timestamps) for name in ("min_timestamp_ms", "max_timestamp_ms")}
    return Manifest(
        version=draw(st.integers(1, 2**63 - 1)),
        nonce=draw(st.text("0123456789abcdef", min_size=1)),
        topic=draw(st.from_regex(r"[a-z]{1,20}", fullmatch=True)),
        tp=draw(st.builds(TopicPartition, st.uuids(), st.integers(0, 2**31 - 1))),
        end=end,
        log_start=draw(st.integers(0, end)),
        leader_epochs=tuple(LeaderEpoch(i, base) for i, base in enumerate(bounds)),
        producers=draw(st.none() | st.builds(ProducerSnapshotRef, st.just(end), st.text())),
        lists=tuple(
            SegmentListRef(key=f"l{b}", level=1, base=b, end=e, segments=1, **sizes, **times)
            for b, e in ranges[:split]
        ),
        segments=tuple(
            SegmentRef(
                key=f"s{b}",
                kind=draw(st.sampled_from(SegmentKind)),
                base=b,
                end=e,
                max_timestamp_offset=draw(st.integers(-1, e)),
                codec=draw(st.sampled_from(("none", "gzip", "snappy", "lz4", "zstd"))),
                horizons=tuple(
                    TombstoneHorizon(at, draw(offsets))
                    for at in sorted(draw(st.sets(st.integers(b + 1, e), max_size=3 * second)))
                ),
                merges=draw(st.integers(0, 2)) if second else 0,
                footer_crc=draw(st.none() | st.integers(0, 2**32 - 1)) if second else None,
                **sizes,
                **times,
            )
            for b, e in ranges[split:]
        ),
        format_version=2 if second else 1,
        cluster_id=draw(st.text()) if second else None,
        cleaned_end=draw(st.integers(0, end)) if second else 0,
        busy=draw(st.none() | st.builds(Busy, st.text(), offsets)) if second else None,
    )


@given(manifests())
def test_manifests_decode_to_what_was_encoded(manifest: Manifest) -> None:
    """
    The decoder inverts the encoder.
    """
    assert manifest == decode_manifest(encode_manifest(manifest))


@given(st.data())
def test_a_damaged_manifest_is_told(data: st.DataObject) -> None:
    """
    Any cut and any changed byte is a CorruptManifestError, and nothing else is.
    """
    damaged = bytearray(data.draw(st.sampled_from((GOLDEN_BYTES, GOLDEN_BYTES_2))))
    at = data.draw(st.integers(0, len(damaged) - 1))
    if data.draw(st.booleans()):
        del damaged[at:]
    else:
        damaged[at] ^= data.draw(st.integers(1, 255))

    with pytest.raises(CorruptManifestError):
        decode_manifest(bytes(damaged))


@given(
    st.binary()
    | st.recursive(st.none() | st.integers(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_anything_else_is_told(body: bytes) -> None:
    """
    Bytes that are no manifest are a CorruptManifestError.
    """
    with pytest.raises(CorruptManifestError):
        decode_manifest(body)


@pytest.mark.parametrize(
    "broken",
    [
        replace(GOLDEN, end=399),
        replace(GOLDEN, log_start=401),
        replace(GOLDEN, leader_epochs=(LeaderEpoch(2, 3), LeaderEpoch(2, 5))),
        replace(GOLDEN, segments=(GOLDEN.segments[0], GOLDEN.segments[0])),
        replace(GOLDEN, segments=(replace(GOLDEN.segments[0], base=99),)),
        replace(GOLDEN, version=0),
        replace(GOLDEN, topic=".."),
    ],
)
def test_a_manifest_that_contradicts_itself_is_told(broken: Manifest) -> None:
    """
    A whole object that breaks an invariant is as damaged as one that is cut.
    """
    with pytest.raises(CorruptManifestError):
        decode_manifest(encode_manifest(broken))


def test_a_newer_format_says_to_upgrade() -> None:
    """
    What a newer driftlog wrote is refused with what to do, not half understood.
    """
    from driftlog_tiering.formats.stored_json import encode_json

    with pytest.raises(CorruptManifestError, match="upgrade"):
        decode_manifest(encode_json("driftlog.manifest", MANIFEST_FORMAT + 1, {}))


def test_a_list_that_its_reference_does_not_describe_is_told() -> None:
    """
    A list object is checked against the reference that led to it.
    """
    bucket = Bucket()
    bucket.apply(add(*(segment(i, i + 1) for i in range(1_001))))
    (ref,) = bucket.manifest.lists
    body = bucket.bodies[ref.key]

    assert bucket.lists[ref.key] == decode_segment_list(body, ref)
    with pytest.raises(CorruptManifestError, match="its reference"):
        decode_segment_list(body, replace(ref, level=2))
