"""Bugs to be planted in compaction: `compaction` has the topic whose readers notice them."""

from typing import Any, Final

import pytest

from driftlog_tiering.compaction import cleaner
from tests.simulation.planted import Plant


def map_with_a_hole(patch: pytest.MonkeyPatch) -> None:
    """The key map lacks what a segment begins with: older values of these keys stay."""
    original = cleaner._add_keys

    def add_keys(key_map: Any, rows: Any, cleaned_end: int) -> int | None:
        return original(key_map, rows, cleaned_end + 3)

    patch.setattr(cleaner, "_add_keys", add_keys)


COMPACTION_BUGS: Final[tuple[Plant, ...]] = (map_with_a_hole,)
