"""What groups of this agent hold in memory, and how much more they may.

    a member says something ──▶ is one member's share, the group's, the agent's kept? ──▶ or refused
    offsets are committed   ──▶ the agent's
    a group is made         ──▶ the agent's, and how many groups there are

Only what makes a group larger is refused: members and groups that are there go on, whatever others
have filled.  Refusals by the agent's limits are retriable, those by a member's or a group's own are
not: the same request would be refused again.

Shell.
"""

from contextvars import ContextVar
from typing import Final

import structlog

from driftlog_agents.configs.limits import Limits, Refusals
from driftlog_agents.protocol.errors import ErrorCode, RefusedError

GROUP_BYTES: Final = 4_000
"""What a group takes of memory, beside what it was told (measured: 3.5 to 4 KB)."""

MEMBER_BYTES: Final = 1_000
"""The same of a member."""

_MEMBER: Final = "driftlog.max.group.member.bytes"
_GROUP: Final = "driftlog.max.group.bytes"
_GROUPS: Final = "driftlog.max.groups"
_ALL: Final = "driftlog.max.groups.bytes"

ASKING: Final[ContextVar[str | None]] = ContextVar("asking", default=None)
"""The address of the client whose request this is: its lines are limited as its, and no others."""


class GroupBudget:
    """See the module.  *held_bytes* is what groups say that they hold."""

    def __init__(self, limits: Limits, refusals: Refusals) -> None:
        self.limits = limits
        self.refusals = refusals
        self.held_bytes = 0
        self._log = structlog.get_logger()

    def refuse_member(self, group_id: str, size_bytes: int) -> None:
        """Refuse what one member says if it is too much by itself.

        Raises:
            RefusedError: INVALID_REQUEST.
        """
        most = self.limits.driftlog_max_group_member_bytes
        if size_bytes > most:
            raise self._refused(group_id, ErrorCode.INVALID_REQUEST, _MEMBER, most, size_bytes)

    def refuse_growth(self, group_id: str, group_bytes: int, growth_bytes: int) -> None:
        """Refuse what makes a group of *group_bytes* larger than it may be.

        Raises:
            RefusedError: GROUP_MAX_SIZE_REACHED, COORDINATOR_NOT_AVAILABLE.
        """
        most, wanted = self.limits.driftlog_max_group_bytes, group_bytes + growth_bytes
        if growth_bytes > 0 and wanted > most:
            raise self._refused(group_id, ErrorCode.GROUP_MAX_SIZE_REACHED, _GROUP, most, wanted)
        self.refuse_bytes(group_id, growth_bytes)

    def refuse_bytes(self, group_id: str, growth_bytes: int) -> None:
        """Refuse what makes all groups together larger than they may be.

        Raises:
            RefusedError: COORDINATOR_NOT_AVAILABLE.
        """
        most, wanted = self.limits.driftlog_max_groups_bytes, self.held_bytes + growth_bytes
        if growth_bytes > 0 and wanted > most:
            raise self._refused(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, _ALL, most, wanted)

    def refuse_group(self, group_id: str, groups: int) -> None:
        """Refuse to make one group more than *groups*.

        Raises:
            RefusedError: COORDINATOR_NOT_AVAILABLE.
        """
        most = self.limits.driftlog_max_groups
        if groups >= most:
            raise self._refused(
                group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE, _GROUPS, most, groups + 1
            )
        self.refuse_bytes(group_id, GROUP_BYTES)

    def full(self, group_id: str, limit: str) -> None:
        """A group has as many members as the config *limit* says, and refused one more."""
        self.refusals.count(limit)
        self._log.warning("group_limit_reached", client=ASKING.get(), group=group_id, limit=limit)

    def _refused(
        self, group_id: str, code: ErrorCode, limit: str, most: int, wanted: int
    ) -> RefusedError:
        self.refusals.count(limit)
        self._log.warning(
            "group_limit_reached",
            client=ASKING.get(),
            group=group_id,
            limit=limit,
            most=most,
            wanted=wanted,
        )
        return RefusedError(code, f"{limit} is {most}, and this would make it {wanted}.")
