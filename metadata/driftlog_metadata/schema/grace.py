"""Grace: how long an object stays after nothing names it; the same for a whole cluster.

    PUT begins ──named within grace / 2, or never──▶│──the other half: requests on their way,
                                                    │  clocks that differ──▶ unnamed for ever

Grace stands in the bucket's ``cluster.json``, where agents and jobs read it: the bounds of what
names objects and of what deletes them come from one number.  A file without it means 12 h.

1. No edit or commit names an object whose PUT began more than grace / 2 ago.
2. No edit is based on a manifest that was read more than grace / 2 ago.
3. A reader with a list of files has grace, less the age of the list, to read them.

Pure.
"""

from dataclasses import dataclass
from typing import Final

HOUR_MS: Final = 3_600_000
DEFAULT_GRACE_MS: Final = 12 * HOUR_MS
MIN_GRACE_MS: Final = 1_000
"""Shorter: requests travel for longer than grace / 2, also in tests."""


@dataclass(frozen=True, slots=True)
class Grace:
    """See the module.

    ``ms``: longer: readers with old lists are safe for longer, and garbage costs more.
    """

    ms: int = DEFAULT_GRACE_MS

    @property
    def named_within_ms(self) -> int:
        """The bound of 1 and 2."""
        return self.ms // 2

    @property
    def short_ms(self) -> int:
        """A step that is well within `named_within_ms`: an hour of the default grace."""
        return self.ms // 12
