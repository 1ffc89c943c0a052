"""`driftlog.segment_files`: the Parquet files of a topic, for readers other than Spark.

    from driftlog import segment_files
    files = segment_files("s3://bucket/prefix", "flights")
    polars.scan_parquet([file.path for file in files])

A glob over the bucket also finds files that no manifest names any more: those of deleted records,
and those that a rewrite replaced.
Shell.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from driftlog.bucket.sealed_topics import full_location, read_topics


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """A sealed segment, with offsets ``[base, end)``.

    Records with offsets below *log_start* are deleted, and may still be in the first file: readers
    leave them out.
    """

    path: str
    """The full location: an absolute path, or ``s3://bucket/…``."""
    kind: str
    """``"parquet"``; ``"raw"``: record batches that could not be decoded, which is no Parquet."""
    partition: int
    base: int
    end: int
    records: int
    size_bytes: int
    log_start: int
    """The log start offset of the partition."""
    manifest: str
    """The key of the manifest version that names this file and *log_start*."""


def segment_files(location: str, topic: str) -> list[SegmentFile]:
    """The segments of *topic*, by partition and offset, without a request to an agent.

    Args:
        location: where the agents keep their objects: ``s3://bucket/prefix``, or a directory.

    Raises:
        ValueError: *location* is no location.
        UnknownTopicError: the topic does not exist.
        DriftlogError: there is no driftlog bucket, or an object is missing or damaged.
    """
    with ThreadPoolExecutor(1) as thread:  # the thread of a notebook already has an event loop
        (found,) = thread.submit(asyncio.run, read_topics(location, [topic])).result()
    return [
        SegmentFile(
            path=full_location(location, segment.key),
            kind=segment.kind.value,
            partition=partition.partition,
            base=segment.base,
            end=segment.end,
            records=segment.records,
            size_bytes=segment.size_bytes,
            log_start=partition.log_start,
            manifest=partition.manifest,
        )
        for partition in found.partitions
        for segment in partition.segments
        if partition.manifest is not None
    ]
