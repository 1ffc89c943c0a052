"""Seeds whose readers wait for room in the cache, while flushes are rewritten and sealed.

Memory and buffer files hold little there, the cache of flush objects has room for one piece, and
six readers (`tail_readers.py`) ask for the unsealed part of the log.  So reads wait for hundreds of
milliseconds between the look-up of a slice and its GET, and `consolidator` moves the slice
meanwhile.
"""

from dataclasses import replace
from typing import Final

from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.reading.read_settings import ReadSettings

_SINGLE: Final = (4, 14)
_SINGLE_OF: Final = 50
_CLUSTER: Final = 28
_CLUSTERS_OF: Final = 100


def is_crowded(seed: int) -> bool:
    """Whether a seed is one of them: one of 25, with one agent, and one of 100, with several."""
    return seed % _SINGLE_OF in _SINGLE or seed % _CLUSTERS_OF == _CLUSTER


def engine_settings(seed: int, usual: EngineSettings) -> EngineSettings:
    """More is unsealed, and less of it is here."""
    if not is_crowded(seed):
        return usual
    return replace(
        usual,
        memory=replace(usual.memory, memory_bytes=2_000),
        buffer=replace(usual.buffer, disk_bytes=3_000, cache_bytes=0, file_bytes=1_000),
        seal=replace(usual.seal, segment_bytes=12_000, segment_ms=8_000, small_ms=8_000),
    )


def read_settings(seed: int, usual: ReadSettings) -> ReadSettings:
    """Room for one piece, which its reader keeps for a while."""
    if not is_crowded(seed):
        return usual
    return replace(
        usual, flush_cache_bytes=600, read_ahead_bytes=500, hold_ms=400, patience_ms=1_500
    )
