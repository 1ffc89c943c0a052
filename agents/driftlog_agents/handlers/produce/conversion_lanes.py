"""Rewrites batches on threads; a heavy batch does not delay light ones.

    batch ──▶ light lane ──▶ up to 4 MiB of records: rewritten
                        └──▶ more ──▶ heavy lane, when no other large batch is decoded ──▶ rewritten

A batch of some KB may take seconds, which shows only while it is decompressed: the light lane stops
at 4 MiB.  In each lane the client that has had least of the thread is next (`FairOffload`).
Smaller batches of one client run first, and waiting batches move up.  The lanes have one batch of a
partition at a time (`log.busy`), so its order stays.

Shell.
"""

from collections.abc import Callable
from typing import Any, Final

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.foundation.offload import FairOffload
from driftlog_agents.log.partition.batch_decoder import CONFIG_PREFIX, BatchDecoder
from driftlog_tiering.batches.batch_limits import OverBatchLimitError
from driftlog_tiering.foundation.types import Offload

_LIGHT_BYTES: Final = 4 * 1024 * 1024
"""Decompressed records of the light lane, at most: they take a fifth of a second."""

_BYTES_PER_MS: Final = 200
"""A waiting batch of 1 MiB runs after smaller ones of its client that arrive in the next 5 s."""


class ConversionLanes:
    """The light and the heavy lane; see the module.

    Args:
        light: runs calls on a thread that large batches never occupy.
        heavy: runs calls on another thread.
    """

    def __init__(
        self, *, light: Offload, heavy: Offload, decoding: BatchDecoder, now_ms: Callable[[], float]
    ) -> None:
        self._light = FairOffload(light, now_ms)
        self._heavy = FairOffload(heavy, now_ms, decoding.large)
        self._decoding = decoding

    async def run(
        self,
        client: Client,
        rewrite: Callable[..., Any],
        limits: Any,
        records: memoryview,
        checked: Any,
    ) -> Any:
        """Call ``rewrite(limits, records, checked, most_bytes)`` in a lane, in *client*'s turn.

        Raises:
            OverBatchLimitError: the batch is over a limit of decoding.
        """
        most, size = self._decoding.limits.decompressed_bytes, len(records)
        due_after_ms = size / _BYTES_PER_MS
        light, call = min(_LIGHT_BYTES, most), (rewrite, limits, records, checked)
        try:
            if size <= light:
                try:
                    return await self._light.run(client, due_after_ms, *call, light)
                except OverBatchLimitError:
                    if light == most:
                        raise
            return await self._heavy.run(client, due_after_ms, *call, most)
        except OverBatchLimitError as error:
            self._decoding.refuse(error.limit)
            message = f"{error} ({CONFIG_PREFIX}{error.limit})"
            raise OverBatchLimitError(error.limit, message) from error
