"""What the keys of stored groups mean to a coordinator that takes them over.

    names of all keys         ──▶ the groups, and how much each may be to read
    a group's own key         ──▶ its claim: the same value with another session in it
    the keys of its members,
    and of its offsets        ──▶ `GroupValues`

Decoding takes some 10 ms a value: these functions run in a thread.

Pure.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from driftlog_agents.groups.classic.stored_value import claimed_value
from driftlog_agents.groups.offsets import GroupOffsets, Page, PageId
from driftlog_agents.groups.storage_format import (
    CLASSIC,
    CONSUMER,
    StoredGroup,
    decode_group,
    decode_member,
    decode_page,
    encode_group,
)
from driftlog_metadata.schema.codec import decode_at
from driftlog_metadata.schema.keys import GROUPS_PREFIX, parse_group_key
from driftlog_metadata.stores.errors import CorruptError, UnsupportedFormatError
from driftlog_metadata.stores.store import KeyValue

_T = TypeVar("_T")

LISTED_AT_ONCE: Final = 50
"""Groups in one claim; a transaction has room for about twice as many."""

LISTED_BYTES: Final = 500_000
"""Most bytes of one claim; a single group may be larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A stored group.  ``members``, ``pages``: how many such keys it has.  ``key_bytes``: of its
    own key in a claim, which names it three times."""

    group_id: str
    key_bytes: int
    members: int
    pages: int


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """The claim of a group: its value as it was read, with another session in it, and encoded."""

    kv: KeyValue
    group: StoredGroup
    value: bytes


@dataclass(frozen=True, slots=True)
class GroupValues:
    """The decoded values of a group.

    ``bodies``: the machine's values, by the names of `Persist`.  ``revisions``: mod revisions of
    the keys of members and pages.
    """

    bodies: dict[str, bytes]
    offsets: GroupOffsets
    revisions: dict[str, int]


class GroupListing:
    """The groups of all keys, of which only the names are read, one after the other: a cluster has
    hundreds of thousands.  Keys below a group's own are only counted."""

    def __init__(self) -> None:
        self._own: dict[str, str] = {}
        """Keys by the groups' ids as they stand in the keys."""
        self._members: Counter[str] = Counter()
        self._pages: Counter[str] = Counter()

    def add(self, key: str) -> None:
        """Count *key*, if it is recognised."""
        group, *parts = key.removeprefix(GROUPS_PREFIX).split("/", 2)
        if not parts:
            self._own[group] = key
        elif parts[0] == "members":
            self._members[group] += 1
        elif parts[0] == "offsets":
            self._pages[group] += 1

    def groups(self) -> Iterator[Listed]:
        """The groups of the keys that were added."""
        for group, key in self._own.items():
            try:
                group_id = parse_group_key(key).group_id
            except ValueError:
                continue  # An unrecognised key.
            yield Listed(
                group_id=group_id,
                key_bytes=3 * len(key),
                members=self._members[group],
                pages=self._pages[group],
            )


def in_parts(
    some: Sequence[Listed], most_bytes: int, size_bytes: Callable[[Listed], int]
) -> list[list[Listed]]:
    """Split *some* into parts of at most *most_bytes*; a larger one is a part of its own."""
    parts: list[list[Listed]] = []
    left_bytes = 0
    for one in some:
        size = size_bytes(one)
        if not parts or size > left_bytes or len(parts[-1]) == LISTED_AT_ONCE:
            parts.append([])
            left_bytes = most_bytes
        parts[-1].append(one)
        left_bytes -= size
    return parts


def claim_of(kv: KeyValue, session_id: str, nonce: str) -> GroupClaim:
    """The claim of the group whose own key is *kv* for the session *session_id*.

    Raises:
        UnsupportedFormatError: a newer driftlog wrote the group.
        CorruptError: the value cannot be read.
    """
    with reading(kv.key):
        stored = decode_at(kv.key, kv.value, decode_group)
        if stored.kind not in (CLASSIC, CONSUMER):  # A newer agent can read it: do not claim it.
            raise UnsupportedFormatError(
                f"{kv.key}: a group of kind {stored.kind!r}: upgrade this driftlog"
            )
        body = stored.body
        if stored.kind == CLASSIC:
            body = decode_at(kv.key, body, claimed_value)
        group = StoredGroup(session_id=session_id, kind=stored.kind, body=body)
        return GroupClaim(kv, group, encode_group(group, nonce))


def decode_values(group: StoredGroup, kvs: Iterable[KeyValue]) -> GroupValues:
    """Decode a claimed group; *kvs*: its members and offsets.

    Raises:
        CorruptError: a value cannot be read.
    """
    bodies = {"": group.body}
    pages: dict[PageId, Page] = {}
    revisions: dict[str, int] = {}
    for kv in kvs:
        try:
            key = parse_group_key(kv.key)
        except ValueError:
            continue  # An unrecognised key.
        revisions[kv.key] = kv.mod_revision
        if key.topic_id is not None:
            page = decode_at(kv.key, kv.value, partial(decode_page, page=key.page))
            pages[PageId(key.topic_id, key.page)] = page
        elif key.member_id is not None:
            bodies[f"members/{key.member_id}"] = decode_at(kv.key, kv.value, decode_member)
    offsets = GroupOffsets()
    offsets.replay(pages)
    return GroupValues(bodies, offsets, revisions)


def readable(values: Mapping[str, Callable[[], _T]]) -> dict[str, _T]:
    """What *values* return, without those that cannot be read."""
    found: dict[str, _T] = {}
    for key, value in values.items():
        with contextlib.suppress(CorruptError):
            found[key] = value()
    return found


@contextlib.contextmanager
def reading(key: str) -> Iterator[None]:
    """A group whose values make its code fail (a bug) is unreadable, and ends no agent."""
    try:
        yield
    except CorruptError:
        raise
    except Exception as error:
        raise CorruptError(f"{key}: {error!r}") from error
