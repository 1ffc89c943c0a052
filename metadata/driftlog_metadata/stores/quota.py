"""How full the metadata store is: when an agent warns, and when it refuses produce.

    ENOUGH ──60 %──▶ SCARCE ──80 %, or it refuses writes──▶ REFUSING
      ◀──────────────── when it is less, by itself ───────────┘

Produce is refused while there is room left, because making room needs some itself:
sealing writes the ends of partitions before flush records can be deleted.  All writes
except produce continue.

etcd counts the size of its file.  Compaction makes room within it, and only defragmentation
makes it smaller; a quota that was reached sets an alarm that refuses writes until an operator
disarms it.

Pure.
"""

from collections.abc import Sequence
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
    """The last usage of the members: the fullest one decides."""

    def __init__(self) -> None:
        self.room = QuotaRoom.ENOUGH
        self.fullest: Usage | None = None
        self.refusal = ""
        """Why produce is refused; empty: it is not."""

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
