"""Counts the requests to an object store by kind and outcome, and how long they took.

Shell.
"""

from typing import Final

from driftlog_agents.foundation.histogram import (
    BOUNDS_S,
    FAILED,
    OK,
    REFUSED,
    UNANSWERED,
    OperationTimes,
)
from driftlog_tiering.stores.counted_store import RequestKind

NOT_FOUND: Final = "not_found"
EXISTS: Final = "exists"

_OUTCOMES: Final = (OK, NOT_FOUND, EXISTS, REFUSED, UNANSWERED, FAILED)
_BOUNDS_S: Final = (*BOUNDS_S, 5.0, 15.0)


class StoreTimes:
    """The requests of one process, by kind.  A page of a listing is a request; cancelled requests
    do not count."""

    def __init__(self) -> None:
        self.requests = {kind: OperationTimes(_OUTCOMES, _BOUNDS_S) for kind in RequestKind}
