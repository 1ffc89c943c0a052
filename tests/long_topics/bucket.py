"""What the bucket has of a topic, by key.

Shell.
"""

from collections import defaultdict
from collections.abc import Mapping

import pyarrow.parquet as pq

from driftlog import segment_files


def rows_by_key(location: str, topic: str) -> Mapping[bytes, tuple[bytes | None, ...]]:
    """The values of each key in the sealed segments of *topic*, ascending by offset.

    One key is in one partition: so partition their clients.
    """
    rows: dict[bytes, list[bytes | None]] = defaultdict(list)
    for file in segment_files(location, topic):
        table = pq.read_table(file.path, columns=["key", "value"])
        for key, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
            rows[key].append(value)
    return {key: tuple(values) for key, values in rows.items()}


def sealed_ends(location: str, topic: str) -> dict[int, int]:
    """By partition: where its last sealed segment ends."""
    return {file.partition: file.end for file in segment_files(location, topic)}
