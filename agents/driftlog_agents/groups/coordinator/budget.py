"""Memory limits of the groups of this agent.

    a member joins or changes ──▶ checked against the limits of a member, a group, the agent
    offsets are committed     ──▶ checked against the agent's limit
    a group is created        ──▶ checked against the agent's limit, the number of groups, and
                                  the longest id

The budget refuses only growth: existing members and groups continue when it is full.  While the
metadata store has little room it refuses what grows much at once.  A refusal by a limit of the
agent is retriable.  One by a limit of a member or a group is not: the same request
would be refused again.

Shell.
"""

from contextvars import ContextVar
from typing import Final

import structlog

from driftlog_agents.configs.limits import Limits, Refusals
from driftlog_agents.groups.sizes import group_id_fault
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.stores.quota import Quota, QuotaRoom

GROUP_BYTES: Final = 4_000
"""Memory of a group without what its clients sent (measured: 3.5 to 4 KB)."""

MEMBER_BYTES: Final = 1_000
"""Memory of a member without what its client sent."""

_SCARCE_GROWTH_BYTES: Final = 64 * 1024
"""Growth by one request that is accepted whatever room the metadata store has: a consumer that
joins, and its first commit of 200 partitions."""

_ADVICE: Final = "find the client by its address; if it is a good one, raise that config"

_MEMBER: Final = "driftlog.max.group.member.bytes"
_GROUP: Final = "driftlog.max.group.bytes"
_GROUPS: Final = "driftlog.max.groups"
_ALL: Final = "driftlog.max.groups.bytes"

ASKING: Final[ContextVar[str | None]] = ContextVar("asking", default=None)
"""Address of the client of this request: the log's rate limit counts its lines for this client."""


class GroupBudget:
    """See the module.  *held_bytes*: the memory that groups report (`ServedGroup.account`).

    Args:
        quota: how much room the metadata store has.
    """

    def __init__(self, limits: Limits, refusals: Refusals, quota: Quota) -> None:
        self.limits = limits
        self.refusals = refusals
        self._quota = quota
        self.held_bytes = 0
        self._log = structlog.get_logger()

    def refuse_member(self, group_id: str, size_bytes: int) -> None:
        """Refuse a member whose data exceed the limit of a member.

        Raises:
            RefusedError: INVALID_REQUEST.
        """
        most = self.limits.driftlog_max_group_member_bytes
        if size_bytes > most:
            raise self._refused(group_id, ErrorCode.INVALID_REQUEST, _MEMBER, most, size_bytes)

    def refuse_growth(self, group_id: str, group_bytes: int, growth_bytes: int) -> None:
        """Refuse growth of a group of *group_bytes* above the limit of a group or of the agent.

        Raises:
            RefusedError: GROUP_MAX_SIZE_REACHED, COORDINATOR_NOT_AVAILABLE.
        """
        most, wanted = self.limits.driftlog_max_group_bytes, group_bytes + growth_bytes
        if growth_bytes > 0 and wanted > most:
            raise self._refused(group_id, ErrorCode.GROUP_MAX_SIZE_REACHED, _GROUP, most, wanted)
        self.refuse_bytes(group_id, growth_bytes)

    def refuse_scarce(self, group_id: str, growth_bytes: int) -> None:
        """Refuse growth of what is stored by much at once, while the store has little room: each
        later change of the group would write it again.

        Raises:
            RefusedError: COORDINATOR_NOT_AVAILABLE.
        """
        if growth_bytes > _SCARCE_GROWTH_BYTES and self._quota.room is not QuotaRoom.ENOUGH:
            self._log.warning(
                "group_limit_reached",
                client=ASKING.get(),
                group=group_id,
                limit="quota of the metadata store",
                advice="make room in etcd, or raise its quota (docs/operate.md): until then groups "
                "grow by 64 KiB at once at most",
            )
            why = "The metadata store has little room: groups grow by 64 KiB at once at most."
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why)

    def refuse_bytes(self, group_id: str, growth_bytes: int) -> None:
        """Refuse growth of all groups together above the agent's limit.

        Raises:
            RefusedError: COORDINATOR_NOT_AVAILABLE.
        """
        most, wanted = self.limits.driftlog_max_groups_bytes, self.held_bytes + growth_bytes
        if growth_bytes > 0 and wanted > most:
            raise self._refused(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, _ALL, most, wanted)

    def refuse_group(self, group_id: str, groups: int) -> None:
        """Refuse to create a group where there are *groups* already.

        Raises:
            RefusedError: INVALID_GROUP_ID, COORDINATOR_NOT_AVAILABLE.
        """
        fault = group_id_fault(group_id)
        if fault is not None:
            raise RefusedError(ErrorCode.INVALID_GROUP_ID, fault)
        most = self.limits.driftlog_max_groups
        if groups >= most:
            raise self._refused(
                group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, _GROUPS, most, groups + 1
            )
        self.refuse_bytes(group_id, GROUP_BYTES)

    def full(self, group_id: str, limit: str, **numbers: int) -> None:
        """Count and log a refusal by the config *limit*; *numbers*: allowed, and asked for."""
        self.refusals.count(limit)
        self._log.warning(
            "group_limit_reached",
            client=ASKING.get(),
            group=group_id,
            limit=limit,
            **numbers,
            advice=_ADVICE,
        )

    def _refused(
        self, group_id: str, code: ErrorCode, limit: str, most: int, wanted: int
    ) -> RefusedError:
        self.full(group_id, limit, most=most, wanted=wanted)
        return RefusedError(code, f"{limit} is {most}, and this would make it {wanted}.")
