"""A restore loses a committed batch, or serves one that a later leader's batch has replaced.

The model (`bucket_model`) knows what was committed.  It is held to planted bugs: serving only what
is proven, restoring whole objects, and refuting nothing.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from driftlog_agents.restore.evidence import FlushEvidence, UnsealedObject
from driftlog_agents.restore.join import JoinedRun, UnsealedBatches
from driftlog_agents.restore.partition_plan import plan_partition
from driftlog_tiering.formats.layout import FlushObjectKey
from driftlog_tiering.formats.manifest import LeaderEpoch, empty_manifest
from tests.agents.restore.bucket_model import TPS, Batch, Bucket, footer_of

SEEDS = range(300)

Joined = dict[int, tuple[int, int]]
"""Base offset → end and epoch of a joined batch."""


def restored(bucket: Bucket, number: int) -> Joined:
    """What a restore finds of a partition."""
    evidence = bucket.evidence()
    return joined(bucket, number, evidence.possible(evidence.refuted()))


def joined(bucket: Bucket, number: int, objects: list[UnsealedObject]) -> Joined:
    manifest = bucket.manifests[TPS[number]]
    epoch = manifest.leader_epochs[-1].epoch if manifest.leader_epochs else -1
    runs = UnsealedBatches(objects).join(TPS[number], manifest.end, epoch)
    return {base: rest for run in runs for base, rest in batches_of(run)}


def batches_of(run: JoinedRun) -> list[tuple[int, tuple[int, int]]]:
    columns = run.footer.columns
    return [
        (columns[3][i], (columns[3][i] + columns[4][i] + 1, columns[2][i]))
        for i in range(run.first, run.first + run.count)
    ]


def lost(seed: int, restore: Callable[[Bucket, int], Joined], *, facts: bool = True) -> list[str]:
    """The committed batches that *restore* does not bring back."""
    bucket = Bucket(seed, facts=facts)
    bucket.run(bucket.rng.randint(5, 400))
    missing: list[str] = []
    for number in range(len(TPS)):
        found = restore(bucket, number)
        missing += [
            f"{batch}"
            for batch in bucket.committed(number)
            if found.get(batch.base) != (batch.end, batch.epoch)
        ]
    return missing


@pytest.mark.parametrize("facts", [True, False])
def test_every_committed_batch_comes_back_at_its_offset(facts: bool) -> None:
    """
    Whatever was in flight, sealed, rewritten and collected; also with footers of format level 1.
    """
    assert {} == {seed: found for seed in SEEDS if (found := lost(seed, restored, facts=facts))}


def behind_gap(bucket: Bucket, number: int) -> tuple[int, str] | None:
    """What a restore finds behind a loss."""
    evidence = bucket.evidence()
    manifest = bucket.manifests[TPS[number]]
    epoch = manifest.leader_epochs[-1].epoch if manifest.leader_epochs else -1
    batches = UnsealedBatches(evidence.possible(evidence.refuted()))
    runs = batches.join(TPS[number], manifest.end, epoch)
    return batches.first_behind_gap(TPS[number], manifest.end, epoch, runs)


@pytest.mark.parametrize("facts", [True, False])
def test_a_loss_is_found_where_there_is_one(facts: bool) -> None:
    """
    A partition without a loss would have no leader; a loss in the middle would be hidden.
    """
    found = 0
    for seed in SEEDS:
        bucket = Bucket(seed, facts=facts)
        bucket.run(bucket.rng.randint(5, 400))
        assert [None, None] == [behind_gap(bucket, number) for number in range(len(TPS))]
        for number in range(len(TPS)):
            above = bucket.committed(number)
            if len(above) > 1:
                bucket.remove(above[0])
                found += behind_gap(bucket, number) is not None
    assert found > 30


def test_new_offsets_begin_above_everything_that_was_given_out() -> None:
    """
    Also above refuted batches: acks=1 told their offsets to a producer.
    """
    for seed in SEEDS:
        bucket = Bucket(seed, facts=True)
        bucket.run(80)
        evidence = bucket.evidence()
        batches = UnsealedBatches(evidence.possible(evidence.refuted()))
        for number, tp in enumerate(TPS):
            manifest = bucket.manifests[tp]
            runs = batches.join(tp, manifest.end)
            plan = plan_partition(manifest, evidence.partitions[tp], runs)
            assert plan.goes_on_at >= max(bucket.told[number] if bucket.objects else 0, 0) or (
                evidence.partitions[tp].end < bucket.told[number]  # its object is collected
            )
            assert plan.goes_on_at >= plan.joined_end >= manifest.end
            assert plan.leader_epoch >= evidence.partitions[tp].leader_epoch + 2**20


def only_proven(bucket: Bucket, number: int) -> Joined:
    """Planted: only what a footer names as committed is served."""
    evidence = bucket.evidence()
    proven: dict[str, int] = {}
    for key, footer in bucket.objects.values():
        proven[key.session_id] = max(proven.get(key.session_id, 0), footer.committed_seq)
    objects = [
        one
        for one in evidence.possible({})
        if one.place[1] <= proven[bucket.objects[one.object_key][0].session_id]
    ]
    return joined(bucket, number, objects)


def whole_objects(bucket: Bucket, number: int) -> Joined:
    """Planted: an object whose sequence another object has, or that is rewritten, is left out."""
    evidence = bucket.evidence()
    by_seq: dict[tuple[str, int], UnsealedObject] = {}
    for one in evidence.possible(evidence.refuted()):
        by_seq[one.footer.session_id, one.footer.seq] = one
    return joined(bucket, number, list(by_seq.values()))


def nothing_refuted(bucket: Bucket, number: int) -> Joined:
    """Planted: objects of fenced sessions are served, and the newest object wins an offset."""
    objects = bucket.evidence().possible({})
    manifest = bucket.manifests[TPS[number]]
    found: Joined = {}
    for one in objects:
        for s in one.footer.slices():
            if s.partition == number:
                run = JoinedRun(one.object_key, one.footer, s.first, s.count, s.base, s.end)
                for base, rest in batches_of(run):
                    if base >= manifest.end:
                        found[base] = rest
    return found


@pytest.mark.parametrize("planted", [only_proven, whole_objects, nothing_refuted])
def test_the_model_finds_a_restore_with_a_bug(planted: Callable[[Bucket, int], Joined]) -> None:
    """
    A model that notices none of them shows nothing.
    """
    assert any(lost(seed, planted) for seed in SEEDS)


def test_an_empty_range_of_a_restore_refutes_nothing() -> None:
    """
    An interrupted run that skips damage has made one below a batch that it did not join; another
    partition's batch of the same object is still to be restored.
    """
    first, second = TPS
    both = footer_of("s", 3, [Batch(0, 4, 2, 3, 0), Batch(1, 4, 0, 1, 0)])
    manifest = replace(
        empty_manifest("t", first), end=3, leader_epochs=(LeaderEpoch(4, 0), LeaderEpoch(2**20, 1))
    )
    for restored, expected in (((), ["o"]), (((first, 2**20),), [])):
        evidence = FlushEvidence({first: manifest}, restored, lambda tp: tp == second)
        evidence.add("o", FlushObjectKey("s", 3, "n", 0, 0), both)
        assert expected == list(evidence.refuted())
        assert 2**20 == evidence.partitions[first].leader_epoch


def test_an_object_above_the_final_head_is_refuted() -> None:
    """
    No producer was told that it is committed, and the session's later flushes go with it.
    """
    for seed in SEEDS:
        bucket = Bucket(seed, facts=True)
        bucket.run(100)
        evidence: FlushEvidence = bucket.evidence()
        refuted = evidence.refuted()
        for name, (key, _) in bucket.objects.items():
            head = bucket.heads.get(key.session_id)
            assert head is None or (name in refuted) == (key.seq > head)


def test_a_final_head_below_what_footers_prove_refutes_nothing() -> None:
    """
    An agent on an old backup of the metadata store has put it.
    """
    seeds = 0
    for seed in SEEDS:
        bucket = Bucket(seed, facts=True)
        bucket.run(200)
        proven: dict[str, int] = {}
        for key, footer in bucket.objects.values():
            proven[key.session_id] = max(proven.get(key.session_id, 0), footer.committed_seq)
        evidence = bucket.evidence()
        before = evidence.refuted()
        for session_id, committed in proven.items():
            if committed > 1:
                evidence.final_head(session_id, committed - 1)
                seeds += 1
        assert before.keys() >= evidence.refuted().keys()
    assert seeds
