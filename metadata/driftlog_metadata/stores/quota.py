"""How full the metadata store is: when an agent warns, refuses produce, and writes less.

    ENOUGH ──60 %──▶ SCARCE ──80 %, or it refuses writes──▶ REFUSING
      ◀──────────────── when it is less, by itself ───────────┘

Produce is refused while there is room left, because making room needs some itself:
sealing writes the ends of partitions before flush records can be deleted.  All writes
except produce continue.

etcd counts the size of its file.  Compaction makes room within it, and only defragmentation
makes it smaller; a quota that was reached sets an alarm that refuses writes until an operator
disarms it.

etcd keeps every value until it compacts, so what replaces a value takes room as what is new does.
What the clients of an agent write (groups, topics and configs together) is limited by the second,
and more where there is little room.

Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

SCARCE_SHARE: Final = 0.6
REFUSING_SHARE: Final = 0.8


class QuotaRoom(Enum):
    """The room for producers in the metadata store."""

    ENOUGH = "enough"
    SCARCE = "scarce"
    REFUSING = "refusing"


BYTES_PER_S: Final[Mapping[QuotaRoom, int]] = {
    QuotaRoom.ENOUGH: 16_000_000,
    QuotaRoom.SCARCE: 2_000_000,
    QuotaRoom.REFUSING: 2_000_000,
}
"""Bytes that an agent's clients write in the long run.  etcd that is compacted each minute keeps
two minutes of them, and its fill is read each 15 s.  More with room: it may be full before that is
noticed.  More with little room: fewer agents fill it."""

_BURST_S: Final = 1.0
"""Bytes of so many seconds are written at once.  Longer: a client may write more at once; shorter:
many groups that commit at the same time wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The usage of one member of the metadata store."""

    member: str
    """Its URL."""
    size_bytes: int
    """The size that the quota limits."""
    quota_bytes: int | None
    """None: not known."""
    full: bool
    """The member refuses writes until its alarm is disarmed."""
    revision: int
    """Revision of the store at that time."""

    @property
    def share(self) -> float:
        """Fraction of the quota in use; 0 where the quota is not known."""
        return self.size_bytes / self.quota_bytes if self.quota_bytes else 0.0


class Quota:
    """The last usage of the members, of which the fullest one decides, and what clients write."""

    def __init__(self) -> None:
        self.room = QuotaRoom.ENOUGH
        self.fullest: Usage | None = None
        self.refusal = ""
        """Why produce is refused; empty: it is not."""
        self.pauses = 0
        """Writes that waited (`wait_s`)."""
        self._paid_s = 0.0
        """When all that was written is within the limit."""

    def wrote(self, size_bytes: int, now_s: float) -> None:
        """Clients of this agent write *size_bytes* of keys and values."""
        self._paid_s = max(self._paid_s, now_s) + size_bytes / BYTES_PER_S[self.room]

    def wait_s(self, now_s: float) -> float:
        """How long their next write waits; a wait is counted."""
        wait_s = self._paid_s - now_s - _BURST_S
        if wait_s <= 0:
            return 0.0
        self.pauses += 1
        return wait_s

    def told(self, members: Sequence[Usage]) -> bool:
        """Take the usage of the members that answered; True: `room` has changed."""
        if not members:
            return False
        before = self.room
        self.fullest = fullest = max(members, key=lambda usage: (usage.full, usage.share))
        if fullest.full or fullest.share >= REFUSING_SHARE:
            self.room = QuotaRoom.REFUSING
        elif fullest.share >= SCARCE_SHARE:
            self.room = QuotaRoom.SCARCE
        else:
            self.room = QuotaRoom.ENOUGH
        how = "full" if fullest.full else f"{fullest.share:.0%} full"
        self.refusal = (
            f"the metadata store is {how}: it accepts no produce until it has room; the "
            "agent's log says how to make room"
            if self.room is QuotaRoom.REFUSING
            else ""
        )
        return self.room is not before

    def advice(self) -> str:
        """The commands that make room in etcd."""
        assert self.fullest is not None
        etcdctl = f"etcdctl --endpoints={self.fullest.member}"
        return (
            f"{etcdctl} compact {self.fullest.revision}; {etcdctl} defrag --cluster; {etcdctl} "
            "alarm disarm   (the last one also where etcd's --quota-backend-bytes was raised "
            "instead; and give it --auto-compaction-mode=periodic --auto-compaction-retention=1m)"
        )
