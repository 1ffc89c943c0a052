"""Compares a claimed partition's log with a manifest that is newer than its key.

    manifest ──ends within the log──▶ an agent died between manifest and key: sealing adopts it
        └─ends above the log, or has other leader epochs──▶ the metadata store is older than the
                                                            bucket: the partition is offline

With a metadata store that was restored from a backup, a leader would assign the offsets of sealed
records again, and sealing would then replace the records that were just acknowledged by those of
the bucket.

Pure.
"""

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_tiering.formats.manifest import Manifest


def older_than_bucket(log: PartitionLog, manifest: Manifest) -> str:
    """Why *log* is offline: its newest manifest ends above it."""
    return (
        f"{manifest.key} ends at {manifest.end}, but in the metadata store the log ends at "
        f"{log.high_watermark}: the metadata store is older than the bucket (restored from a "
        f"backup?); {repair(log)}"
    )


def find_problem(log: PartitionLog, manifest: Manifest) -> str | None:
    """Why the recovered *log*, whose key names an older version than *manifest*, cannot be served;
    None: it can."""
    if manifest.end > log.high_watermark:
        return older_than_bucket(log, manifest)
    return _other_epochs(log, manifest)


def _other_epochs(log: PartitionLog, manifest: Manifest) -> str | None:
    """Compares where leader epochs begin in *manifest* and in *log*; None: they agree, else the
    problem.

    (Only epochs that begin above both starts are compared: a start within an epoch cuts it.)
    """
    start = max(log.sealed_end, manifest.log_start)
    sealed = {(e.epoch, e.start_offset) for e in manifest.leader_epochs if e.start_offset > start}
    here = {(epoch, at) for epoch, at in log.epochs if start < at < manifest.end}
    if sealed == here:
        return None
    return (
        f"{manifest.key} has leader epochs at {sorted(sealed)}, and the log that the metadata "
        f"store knows at {sorted(here)} (epoch, first offset): the metadata store was older than "
        f"the bucket, and others have written since; {repair(log)}"
    )


def repair(log: PartitionLog) -> str:
    """The advice for *log*, of which the metadata store lacks a part."""
    return (
        f"stop the agents and restore the newer metadata store, if there is one; to continue "
        f"without it, see `driftlog partitions accept-loss {log.topic}:{log.partition}`"
    )
