"""What groups hold is counted, whatever clients send: else their limits would bound nothing."""

import gc
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.messages import JoinRequest, Protocol
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.offsets import Committed, GroupOffsets, PageId
from driftlog_agents.groups.sizes import text_bytes
from driftlog_metadata.schema.keys import group_offsets_key
from tests.agents.groups.consumer_group import Group, topics

KiB = 1024
MOST_BYTES = 64 * KiB
"""What a small group may hold beside what is counted."""


def classic() -> ClassicGroup:
    """Without members."""
    return ClassicGroup("g", ClassicSettings(initial_rebalance_delay_ms=0), str, 0)


def join(group: ClassicGroup, member_id: str, protocols: list[str]) -> None:
    """Of one that has an id."""
    request = JoinRequest(
        version=3,
        client_id=member_id,
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id if member_id in group.members else "",
        protocol_type="x",
        protocols=tuple(Protocol(name, b"") for name in protocols),
    )
    group.join(1, request, 0)


def served(machine: Any, offsets: GroupOffsets | None = None, **stored: Any) -> ServedGroup:
    """As a coordinator has it."""
    host: Any = SimpleNamespace(session_id="s", nonce=str)
    return ServedGroup(**{"group_id": "g", **stored}, machine=machine, host=host, offsets=offsets)


def many_protocols() -> ServedGroup:
    """Members name 100 protocols without a name each."""
    group = classic()
    for number in range(50):
        join(group, f"m{number}", [""] * 100)
    return served(group)


def new_protocols() -> ServedGroup:
    """A member joins again and again, each time with other protocols beside one."""
    group = classic()
    for number in range(100):
        join(group, "m", ["p", *(f"p{number}-{n}" for n in range(99))])
    return served(group)


def wide_characters() -> ServedGroup:
    """One character of a text makes all of them four bytes wide."""
    offsets = GroupOffsets()
    page = {n: Committed(offset=n, metadata=f"\N{GRINNING FACE}{n:01000}") for n in range(256)}
    offsets.replay({PageId(UUID(int=1), 0): page})
    return served(classic(), offsets)


def short_names() -> ServedGroup:
    """Members subscribe to many topics whose names are short."""
    group = Group(topics(orders=1))
    for number in range(5):
        group.join(f"m{number}", names=[f"{number}{n}" for n in range(4_000)])
    return served(group.machine)


def assignments() -> ServedGroup:
    """A member is assigned all partitions of large topics."""
    group = Group(topics(orders=8_000, clicks=8_000))
    group.join("m", names=["orders", "clicks"])
    return served(group.machine)


def many_pages() -> ServedGroup:
    """One offset of each of many topics: the key of each has the group's id."""
    offsets, group_id = GroupOffsets(), "é" * 512
    ids = [UUID(int=n << 64) for n in range(1_000)]
    offsets.replay({PageId(id_, 0): {0: Committed(offset=id_.int >> 40)} for id_ in ids})
    revisions = {group_offsets_key(group_id, id_, 0): id_.int >> 40 for id_ in ids}
    return served(classic(), offsets, group_id=group_id, revisions=revisions)


@pytest.mark.parametrize(
    "make", [many_protocols, new_protocols, wide_characters, short_names, assignments, many_pages]
)
def test_a_group_holds_what_is_counted_and_not_much_more(make: Callable[[], ServedGroup]) -> None:
    """
    By Python's own count; and nothing is counted many times over, which would refuse groups.
    """
    make()  # What is made once is there: caches of classes, of numbers.
    gc.collect()
    tracemalloc.start()
    try:
        group = make()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held <= 1.25 * group.size_bytes + MOST_BYTES
    assert group.size_bytes <= 4 * held


def test_a_text_takes_four_bytes_a_character_if_one_of_them_does() -> None:
    """
    An empty text is shared by all that have one.
    """
    assert [0, 74, 64 + 40] == [
        text_bytes(""),
        text_bytes("x" * 10),
        text_bytes("x" * 9 + "\U0001f600"),
    ]
