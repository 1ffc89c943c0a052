"""`Admin.groups`.

Shell.
"""

import builtins
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Place

from driftlog.admin.admin_link import AdminLink
from driftlog.admin.admin_topics import Topics, missing, offsets
from driftlog.common.records import TopicPartition
from driftlog.consumer.lookups import Where
from driftlog.errors import GroupNotEmptyError, UnknownGroupError, request_error

_STATES: Final = {
    ConsumerGroupState.UNKNOWN: "Unknown",
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.EMPTY: "Empty",
}
"""Kafka's words.  librdkafka knows no others: the states of KIP-848 are Unknown."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group, as lists show it."""

    group: str
    state: str
    kind: str
    """``classic`` or ``consumer`` (KIP-848)."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group, and what it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A group and its members."""

    group: str
    state: str
    kind: str
    assignor: str
    coordinator: int | None
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The position of a group in a partition."""

    topic: str
    partition: int
    committed: int
    """The offset that the group reads next."""
    end: int
    """The offset of the next record that is written."""
    metadata: str = ""

    @property
    def lag(self) -> int:
        """The number of offsets between the two."""
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset did to a partition, or would do."""

    topic: str
    partition: int
    before: int | None
    """None: the group had committed nothing."""
    after: int


class Groups:
    """`Admin.groups`: the consumer groups of a cluster, and their offsets."""

    def __init__(self, link: AdminLink) -> None:
        self._link = link

    def list(self) -> list[GroupListing]:
        """All consumer groups, in order of their names.

        Raises:
            RequestError: a broker could not list its groups; the list would not be complete.
        """
        found: Any = self._link.ask_one(
            "list groups",
            lambda handle: handle.list_consumer_groups(request_timeout=self._link.timeout_s),
        )
        if found.errors:
            raise request_error("list groups", found.errors[0].args[0])
        return sorted(
            (
                GroupListing(g.group_id, _STATES.get(g.state, "Unknown"), g.type.name.lower())
                for g in found.valid
            ),
            key=lambda listing: listing.group,
        )

    def describe(self, *groups: str) -> dict[str, Group]:
        """Those groups and their members, by name; without names: all.

        Raises:
            UnknownGroupError: there is no such group.
        """
        wanted = [*dict.fromkeys(groups)] or [listing.group for listing in self.list()]
        if not wanted:
            return {}
        found = {name: _group(group) for name, group in self._described(wanted).items()}
        for name, group in found.items():
            if group.state == "Dead":
                raise UnknownGroupError(
                    f"group {name!r} does not exist: Admin().groups.list() shows the groups",
                    code=69,
                )
        return found

    def delete(self, *groups: str) -> None:
        """Delete groups and their committed offsets.

        Raises:
            GroupNotEmptyError: one has members; the others are deleted.
            UnknownGroupError: there is no such group; the others are deleted.
            ValueError: no group is named.
        """
        if not groups:
            raise ValueError("name at least one group")
        wanted = [*dict.fromkeys(groups)]
        self._link.each(
            wanted,
            lambda handle, names: handle.delete_consumer_groups(
                names, request_timeout=self._link.timeout_s
            ),
            lambda name: f"delete group {name!r}",
        )

    def offsets(self, group: str) -> builtins.list[GroupOffset]:
        """The group's offsets, of each partition of which it has committed one.

        Raises:
            UnknownGroupError: there is no such group.
        """
        committed = self._committed(group)
        if not committed:
            self.describe(group)
        there = set(Topics(self._link).list(internal=True))
        live = {tp: place for tp, place in committed.items() if tp.topic in there}
        wheres: dict[TopicPartition, Where] = dict.fromkeys(live, "end")
        ends = offsets(self._link, wheres)
        return [
            GroupOffset(*tp, place.offset, ends[tp], place.metadata or "")
            for tp, place in sorted(live.items())
        ]

    def reset(
        self,
        group: str,
        to: Where | None = None,
        *,
        topics: str | Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        shift_by: int | None = None,
        dry_run: bool = False,
    ) -> builtins.list[Reset]:
        """Commit other offsets for the group: *to* a place, or moved by *shift_by*.

        An offset below the first or above the end of a partition becomes that one.  A group that
        does not exist is created where *topics* are named.

        Args:
            to: an offset, a time, "beginning" or "end".
            topics: None: all topics of which the group has committed offsets.
            partitions: None: all partitions of those topics.
            shift_by: so many offsets later; negative: earlier.
            dry_run: return the resets, and do not commit them.

        Raises:
            GroupNotEmptyError: it has members, which would continue at their positions.  Stop them
                first.
            UnknownGroupError: there is no such group, and no *topics* are named.
            UnknownTopicError: there is no such topic.
            ValueError: not exactly one of *to* and *shift_by* is given, or a partition that
                *shift_by* is to move has no committed offset.
        """
        if (to is None) == (shift_by is None):
            raise ValueError("give one of to=… and shift_by=…")
        self._refuse_if_active(group)
        committed = self._committed(group)
        chosen = self._partitions(group, committed, topics, partitions)
        begins = offsets(self._link, dict.fromkeys(chosen, "beginning"))
        ends = offsets(self._link, dict.fromkeys(chosen, "end"))
        if to is not None:
            targets = offsets(self._link, dict.fromkeys(chosen, to))
        else:
            without = [tp for tp in chosen if tp not in committed]
            if without:
                raise ValueError(
                    f"{without[0].topic}-{without[0].partition} has no committed offset to shift"
                )
            targets = {tp: committed[tp].offset + (shift_by or 0) for tp in chosen}
        resets = [
            Reset(
                *tp,
                committed[tp].offset if tp in committed else None,
                min(max(targets[tp], begins[tp]), ends[tp]),
            )
            for tp in chosen
        ]
        if not dry_run and resets:
            self._commit(group, resets)
        return resets

    # ── Inside ──

    def _refuse_if_active(self, group: str) -> None:
        found = _group(self._described([group])[group])
        if found.state not in ("Empty", "Dead") or found.members:
            names = ", ".join(sorted({member.client_id for member in found.members})) or "unnamed"
            raise GroupNotEmptyError(
                f"group {group!r} is {found.state} with {len(found.members)} members ("
                f"{names}), and members do not read moved offsets. Stop them, and wait "
                "until their sessions end.",
                code=68,
            )

    def _partitions(
        self,
        group: str,
        committed: dict[TopicPartition, Place],
        topics: str | Sequence[str] | None,
        partitions: Sequence[int] | None,
    ) -> Sequence[TopicPartition]:
        if topics is None:
            if not committed:
                raise UnknownGroupError(
                    f"group {group!r} has no committed offsets: name the topics", code=69
                )
            chosen: Iterable[TopicPartition] = committed
        else:
            names = [topics] if isinstance(topics, str) else [*topics]
            missing(names, Topics(self._link).list(internal=True))
            described = Topics(self._link).describe(*names)
            chosen = (
                TopicPartition(name, p.partition)
                for name, topic in described.items()
                for p in topic.partitions
            )
        return sorted(tp for tp in chosen if partitions is None or tp.partition in partitions)

    def _described(self, groups: Sequence[str]) -> dict[str, Any]:
        return self._link.each(
            groups,
            lambda handle, names: handle.describe_consumer_groups(
                names, request_timeout=self._link.timeout_s
            ),
            lambda name: f"describe group {name!r}",
        )

    def _committed(self, group: str) -> dict[TopicPartition, Place]:
        what = f"read the offsets of group {group!r}"
        found: Any = self._link.ask(
            what,
            lambda handle: handle.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=self._link.timeout_s
            ),
        )
        committed: dict[TopicPartition, Place] = {}
        for place in found.topic_partitions or []:
            if place.error is not None:
                raise request_error(what, place.error)
            if place.offset >= 0:
                committed[TopicPartition(place.topic, place.partition)] = place
        return committed

    def _commit(self, group: str, resets: Sequence[Reset]) -> None:
        what = f"reset group {group!r}"
        places = [Place(reset.topic, reset.partition, reset.after) for reset in resets]
        done: Any = self._link.ask(
            what,
            lambda handle: handle.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, places)], request_timeout=self._link.timeout_s
            ),
        )
        for place in done.topic_partitions or []:
            if place.error is not None:
                raise request_error(f"{what} in {place.topic}-{place.partition}", place.error)


def _group(found: Any) -> Group:
    return Group(
        found.group_id,
        _STATES.get(found.state, "Unknown"),
        found.type.name.lower(),
        found.partition_assignor or "",
        None if found.coordinator is None else found.coordinator.id,
        tuple(
            Member(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.host,
                tuple(
                    sorted(
                        TopicPartition(place.topic, place.partition)
                        for place in member.assignment.topic_partitions
                    )
                ),
            )
            for member in found.members
        ),
    )
