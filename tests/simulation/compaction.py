"""A topic that is compacted while it is written, read, handed over and restarted.

Some seeds compact the topic `TOPIC`.  `batches` says which keys and tombstones it has.

1. Of each key the newest record stays, at its offset.  A record that is gone had a newer one of its
   key, and is below the manifest's cleaned end.
2. Below cleaned end no key has two records.
3. What is read at an offset is always the same record (`oracle`); a reader reaches the end.
4. The reader that reads everything at the end has the newest value of each key, and none of a key
   whose newest record was a tombstone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from driftlog_agents.log.compaction.compaction_looks import CompactionSettings
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_tiering.compaction.policy import CleanerSettings
from tests.simulation.batches import Row, key_of
from tests.simulation.oracle import GONE, Expect
from tests.simulation.seal_agents import has_seal_agent

TOPIC: Final = "b"

_SINGLES: Final = (29, 40, 79, 90, 97)
_CLUSTERS: Final = (42, 145, 152)

_SLOTS: Final = 6
"""Of the key map: with ten keys a run often stops before the dirty end."""


def has_compaction(seed: int) -> bool:
    """Whether a topic is compacted: five of a hundred single agents, and some clusters.

    (Of seeds that find no planted bug, whose schedules this would change.)
    """
    return seed % 100 in _SINGLES or seed % 200 in _CLUSTERS or has_seal_agent(seed)


def configs(seed: int, topic: str, *, deletions: bool) -> dict[str, str]:
    """Those of a topic that is made at the beginning; *deletions*: its records are deleted, too."""
    if topic != TOPIC or not has_compaction(seed):
        return {}
    # As Kafka, agents delete no records of a topic that is only compacted.
    policy = "compact,delete" if deletions else "compact"
    return {
        "cleanup.policy": policy,
        "min.cleanable.dirty.ratio": "0",
        "retention.ms": "-1",
        "delete.retention.ms": "100",
    }


def engine_settings(seed: int, usual: EngineSettings) -> EngineSettings:
    """Compaction as soon as there is a new segment; a small map in every second of its seeds."""
    slots = _SLOTS if seed // 100 % 2 else 1_000
    cleaner = CleanerSettings(map_bytes=24 * slots, reader_ms=100)
    return replace(usual, compaction=CompactionSettings(backoff_ms=200, cleaner=cleaner))


def check(log: Sequence[Row], start: int, cleaned_end: int, expect: Expect) -> None:
    """Whether the *log* from *start* on has one record of each key below *cleaned_end*."""
    keys = [key_of(row.value) for row in log[start:cleaned_end] if row is not GONE]
    expect(len(keys) == len(set(keys)), f"below {cleaned_end} there are the keys {sorted(keys)}")
