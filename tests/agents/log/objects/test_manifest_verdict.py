"""If it broke, a metadata store restored from a backup would give offsets of sealed records to new
ones, or a manifest of an agent that died would stop its partition."""

from dataclasses import replace
from uuid import UUID

import pytest

from driftlog_agents.log.objects.manifest_verdict import find_problem
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifest import LeaderEpoch, Manifest, empty_manifest

TOPIC_ID = UUID(int=7)
Epochs = list[tuple[int, int]]


def log_of(epochs: Epochs, *, sealed_end: int, high_watermark: int) -> PartitionLog:
    log = PartitionLog(
        topic="t", topic_id=TOPIC_ID, partition=3, leader_epoch=9, sealed_end=sealed_end
    )
    log.high_watermark = log.log_end = high_watermark
    for epoch, start in epochs:
        log.start_epoch(epoch, start)
    return log


def manifest_of(epochs: Epochs, end: int, log_start: int = 0) -> Manifest:
    manifest = empty_manifest("t", TopicPartition(TOPIC_ID, 3))
    starts = tuple(LeaderEpoch(*entry) for entry in epochs)
    return replace(manifest, end=end, log_start=log_start, leader_epochs=starts)


def test_a_manifest_within_the_log_is_one_that_sealing_adopts() -> None:
    """
    An agent died between the manifest and the partition's key.
    """
    log = log_of([(1, 0), (2, 15)], sealed_end=10, high_watermark=30)

    for end in (10, 20, 30):
        assert find_problem(log, manifest_of([(1, 0), (2, 15)][: 1 + (end > 15)], end)) is None


def test_a_manifest_that_ends_above_the_log_means_an_older_metadata_store() -> None:
    """
    Its records would be acknowledged and lost; the reason names the command that goes on.
    """
    log = log_of([(1, 0)], sealed_end=10, high_watermark=30)

    problem = find_problem(log, manifest_of([(1, 0)], 31))

    assert problem is not None
    assert "ends at 31" in problem
    assert "accept-loss t:3" in problem


@pytest.mark.parametrize(
    "sealed",
    [
        [(1, 0), (3, 15)],  # another epoch began there
        [(1, 0), (2, 16)],  # it began elsewhere
        [(1, 0)],  # it never began
        [(1, 0), (2, 15), (4, 18)],  # one more began
    ],
)
def test_other_leader_epochs_mean_that_others_have_written_since(sealed: Epochs) -> None:
    """
    The offsets are the same, but the records are not.
    """
    log = log_of([(1, 0), (2, 15)], sealed_end=10, high_watermark=30)

    problem = find_problem(log, manifest_of(sealed, 20))

    assert problem is not None
    assert "leader epochs" in problem


def test_epochs_that_began_below_both_starts_are_not_compared() -> None:
    """
    A start within an epoch cuts it: the log knows only what its sealed end left.
    """
    log = log_of([(2, 10), (3, 15)], sealed_end=10, high_watermark=30)

    assert find_problem(log, manifest_of([(1, 0), (2, 7), (3, 15)], 20)) is None
    log = log_of([(2, 12), (3, 15)], sealed_end=10, high_watermark=30)
    assert find_problem(log, manifest_of([(1, 0), (3, 15)], 20, log_start=12)) is None
