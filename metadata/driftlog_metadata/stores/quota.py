"""How full the metadata store is: when to say so, and when to take no more from producers.

    ENOUGH ──60 %──▶ SCARCE ──80 %, or it refuses writes──▶ REFUSING
      ◀──────────────── when it is less, by itself ───────────┘

Produce is refused while there is room left, because what makes room needs some itself:
sealing writes the ends of partitions before flush records can be deleted.  Those, and
whatever else is not a producer's, go on.

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


class Room(Enum):
    """What there is for producers."""

    ENOUGH = "enough"
    SCARCE = "scarce"
    REFUSING = "refusing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of one member of the metadata store."""

    member: str
    """Its URL."""
    size_bytes: int
    """What the quota counts."""
    quota_bytes: int | None
    """None: not known."""
    full: bool
    """It refuses writes until its alarm is disarmed."""
    revision: int
    """Of the store, when this was told."""

    @property
    def share(self) -> float:
        """Of the quota; 0 where that is not known."""
        return self.size_bytes / self.quota_bytes if self.quota_bytes else 0.0


class Quota:
    """What was last told of the members: the fullest one decides."""

    def __init__(self) -> None:
        self.room = Room.ENOUGH
        self.fullest: Usage | None = None
        self.refusal = ""
        """Why producers are refused; empty: they are not."""

    def told(self, members: Sequence[Usage]) -> bool:
        """Take what they said (those that answered); True: there is news to be told."""
        if not members:
            return False
        before = self.room
        self.fullest = fullest = max(members, key=lambda usage: (usage.full, usage.share))
        if fullest.full or fullest.share >= REFUSING_SHARE:
            self.room = Room.REFUSING
        elif fullest.share >= SCARCE_SHARE:
            self.room = Room.SCARCE
        else:
            self.room = Room.ENOUGH
        how = "full" if fullest.full else f"{fullest.share:.0%} full"
        self.refusal = (
            f"the metadata store is {how}: nothing more is taken until there is room in it; the "
            "agent's log says how to make some"
            if self.room is Room.REFUSING
            else ""
        )
        return self.room is not before

    def advice(self) -> str:
        """The commands that make room in etcd."""
        assert self.fullest is not None
        etcdctl = f"etcdctl --endpoints={self.fullest.member}"
        return (
            f"{etcdctl} compact {self.fullest.revision}; {etcdctl} defrag --cluster; "
            f"{etcdctl} alarm disarm   (the last one also where etcd's --quota-backend-bytes was "
            "raised instead; and give it --auto-compaction-mode=periodic "
            "--auto-compaction-retention=1m)"
        )
