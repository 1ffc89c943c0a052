"""Waits until no agent of the old cluster commits any more.

    the next cluster file is there ──60 s──▶ no agent believes an older look at it any more
                                   ──2 s───▶ no producer is told of a commit that was sent before
                                   ──10 s──▶ no node of the store lags as far behind
                                   ──a margin──▶ the restore reads what the bucket has

A node that lags may say for a moment that there is no next cluster file, and list what an agent put
last a moment later.

An agent that is suspended meanwhile looks again before its next commit (`bucket_ownership`).

Shell.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from driftlog_agents.cluster.bucket_ownership import VALID_MS
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings

_LAG_MS: Final = 10_000.0
"""Of a node of the store.  Longer: a restore takes longer."""

_MARGIN_MS: Final = 3_000.0
"""For clocks that run at different speeds.  Longer: a restore takes longer."""

WAIT_S: Final = (VALID_MS + FlushSettings().commit_deadline_ms + _LAG_MS + _MARGIN_MS) / 1000


async def until_old_agents_stop(progress: Callable[[str, int], None]) -> None:
    """Wait; *progress* is given how many seconds are left."""
    left_s = WAIT_S
    while left_s > 0:
        progress("s until no agent of the old cluster commits", round(left_s))
        await asyncio.sleep(min(1.0, left_s))
        left_s -= 1.0
