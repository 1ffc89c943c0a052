"""How often the collector sends a request: a page of a listing, a read of metadata, a delete.

Shell.
"""

from typing import Final

from driftlog_agents.foundation.retry import Retry

_ATTEMPTS: Final = 3
"""Of each request.  Fewer: a pass over thousands of pages ends at the first one that fails, and
nothing behind it is collected.  More: a store in trouble gets more requests."""


def request_retry(deadline_ms: float, wait_ms: float = 1_000.0) -> Retry:
    """*deadline_ms*: of each attempt; *wait_ms*: between two attempts."""
    return Retry(
        wait_s=wait_ms / 1000,
        longest_wait_s=wait_ms / 1000,
        timeout_s=deadline_ms / 1000,
        attempts=_ATTEMPTS,
    )
