"""The seeds in which records of every topic expire (`retention`).

Pure.
"""

from typing import Final

_SEEDS: Final = (30, 34, 47, 49, 53, 65, 70, 94)
"""Of every hundred: no planted bug is looked for in them that needs other schedules."""


def has_retention(seed: int) -> bool:
    """Whether records expire; in all other seeds they stay for ever."""
    return seed % 100 in _SEEDS
