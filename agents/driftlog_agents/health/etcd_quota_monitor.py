"""Checks how full the metadata store is, and logs changes.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from driftlog_metadata.stores.errors import StoreError
from driftlog_metadata.stores.quota import Quota, QuotaRoom, Usage

_INTERVAL_S: Final = 15.0
"""Between two checks.  At 20 flushes/s a thousand agents write 45 MB meanwhile, a fortieth of
etcd's smallest usual quota; shorter: more requests to etcd."""

_SCARCE_INTERVAL_S: Final = 3.0
"""The same while room is scarce, or produce is refused."""

_DEADLINE_S: Final = 10.0
"""Timeout of one check of all members."""

Ask = Callable[[], Awaitable[Sequence[Usage]]]


class EtcdQuotaMonitor:
    """See the module.

    Args:
        ask: returns the usage of every member that answers.
    """

    def __init__(self, quota: Quota, ask: Ask) -> None:
        self._quota = quota
        self._ask = ask
        self._log = structlog.get_logger()
        self._told_unknown = False

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.look()
            enough = self._quota.room is QuotaRoom.ENOUGH
            await asyncio.sleep(_INTERVAL_S if enough else _SCARCE_INTERVAL_S)

    async def look(self) -> None:
        """Check once.  Without an answer the state stays; other monitors report the outage."""
        try:
            async with asyncio.timeout(_DEADLINE_S):
                members = await self._ask()
        except (StoreError, TimeoutError):
            return
        known = any(usage.quota_bytes for usage in members)
        if members and not known and not self._told_unknown:
            self._log.warning(
                "etcd_quota_unknown",
                members=", ".join(usage.member for usage in members),
                advice="etcd before 3.6 reports its quota in /metrics only: let agents read "
                "that at these addresses, or produce is not refused before etcd is full",
            )
        self._told_unknown = bool(members) and not known
        if not self._quota.told(members):
            return
        usage = self._quota.fullest
        assert usage is not None
        facts = {
            "member": usage.member,
            "size_bytes": usage.size_bytes,
            "quota_bytes": usage.quota_bytes,
            "share": f"{usage.share:.0%}",
        }
        advice = self._quota.advice()
        match self._quota.room:
            case QuotaRoom.ENOUGH:
                self._log.info("etcd_quota_recovered", **facts)
            case QuotaRoom.SCARCE:
                self._log.warning(
                    "etcd_quota_low",
                    **facts,
                    advice="at 80 % produce is refused, no topic is created, and configs may only "
                    f"become smaller.  {advice}",
                )
            case QuotaRoom.REFUSING:
                self._log.error(
                    "etcd_quota_exhausted" if usage.full else "etcd_quota_almost_exhausted",
                    **facts,
                    advice="produce is refused, no topic is created, and configs may only become "
                    f"smaller until there is room.  {advice}",
                )
