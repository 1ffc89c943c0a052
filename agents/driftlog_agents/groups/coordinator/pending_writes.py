"""Decisions of a group that are not stored yet, and the next write that is built from them.

    Persist of the machine ─┐                                    ┌──▶ stored: replay, answer
    Changes of offsets ─────┼──▶ in their order ──gather──▶ write ┤
    deletion ───────────────┘  encoded, and in flight, one a time └──▶ refused

Decisions that arrive while a write is in flight go together into the next write: of a key that is
written twice, only the last value.  When it is full, later offsets of its pages still join it: a
client that sends a long commit again beside a slow store does not wait for all its copies.  A
deletion replaces all decisions that are not in flight.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from driftlog_agents.groups.coordinator.write_batcher import GroupWrite
from driftlog_agents.groups.offsets import (
    PAGE_PARTITIONS,
    Changes,
    Committed,
    GroupOffsets,
    Page,
    PageId,
    PageTexts,
    page_of,
    size_of,
)
from driftlog_agents.groups.storage_format import (
    StoredGroup,
    encode_group,
    encode_member,
    encode_page,
)
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.keys import (
    group_key,
    group_member_key,
    group_offsets_key,
    group_prefix,
    parse_group_key,
)
from driftlog_metadata.schema.model import TopicPartition

MEMBERS: Final = "members/"
"""Prefix of the names of a machine's values; the group's own value has the name ""."""

_WRITE_KEYS: Final = 100
"""Keys of one write; with a few more, it fills a transaction.  Commits of more pages are written in
parts, one after the other."""

_WRITE_BYTES: Final = 1_200_000
"""The same in bytes, with room for what is not counted: texts of control characters have a quarter
more when they are stored.  A single decision may have more."""

_NUMBERS_BYTES: Final = 10_000
"""Bytes of a page without its texts: 256 offsets with random numbers, compressed, have 8,500."""

_KEY_BYTES: Final = 250
"""Memory of a stored key beside its characters, and of a page beside its offsets (measured:
270)."""

_PAGE_NAME_BYTES: Final = 60
"""Characters of a page's key behind those of its group's."""

_JOIN_LOOK: Final = 10_000
"""Pages of the decisions that are looked at behind those that fill a write: some milliseconds."""

_LONG_BYTES: Final = 64 * 1024
"""Bytes of a machine's values that are encoded, and compressed, at once: less than a
millisecond."""

_LONG_OFFSETS: Final = PAGE_PARTITIONS
"""The same of offsets: a page."""


@dataclass(slots=True, kw_only=True)
class Decided:
    """One decision to write.

    ``puts``: the machine's values, by name.  ``of``: the machine that returned the Persist with
    ``token``.  ``done``: resolved when the decision is stored.  ``pages``: those that ``changes``
    write; ``keys_bytes``: memory of their keys.
    """

    of: object = None
    token: int = 0
    kind: str = ""
    puts: Mapping[str, bytes | None] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    pages: Set[PageId] = frozenset()
    delete: bool = False
    done: asyncio.Future[None] | None = None
    keys_bytes: int = 0
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        assert len(self.puts) <= _WRITE_KEYS
        self.size_bytes = size_of(self.changes) + self.keys_bytes

    def succeed(self) -> None:
        """Resolve ``done``: the decision is stored."""
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    def fail(self, code: ErrorCode) -> None:
        """Fail ``done``: the decision is not stored, or that is unknown."""
        if self.done is not None and not self.done.done():
            self.done.set_exception(RefusedError(code))
            self.done.exception()  # A commit awaits its parts up to the first that fails.


@dataclass(frozen=True, slots=True, kw_only=True)
class UnencodedWrite:
    """A write whose values are not encoded yet.

    ``encode`` uses nothing that changes meanwhile.  ``is_long``: it takes some milliseconds.
    """

    encode: Callable[[], GroupWrite]
    is_long: bool = False


class PendingWrites:
    """See the module.

    Args:
        revision: mod revision of the group's key; 0: it is not stored yet.
        revisions: the same of its members' and pages' keys.
    """

    def __init__(
        self,
        *,
        group_id: str,
        session_id: str,
        nonce: Callable[[], str],
        offsets: GroupOffsets,
        revision: int,
        revisions: Mapping[str, int],
    ) -> None:
        self._group_id = group_id
        self._session_id = session_id
        self._nonce = nonce
        self.key = group_key(group_id)
        self.offsets = offsets
        self.revision = revision
        self._revisions = dict(revisions)
        self.keys_bytes = len(self.key) + sum(map(_key_bytes, self._revisions))
        """Memory of the stored keys of the group, its members and pages."""
        self.size_bytes = 0
        """Memory of offsets that are not stored yet, with the keys of their pages."""
        self._decided: list[Decided] = []
        self._in_flight: list[Decided] | None = None
        self._write: GroupWrite | None = None
        self._pages: dict[PageId, Page] = {}
        """Pages of the write in flight."""
        self.texts = PageTexts()
        """Of the stored offsets and of all decisions."""
        self.count_texts()

    def __len__(self) -> int:
        return len(self._decided)

    @property
    def in_flight(self) -> bool:
        """Whether a gathered write is being encoded, or has no outcome yet."""
        return self._in_flight is not None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to write."""
        return not self._decided and self._in_flight is None

    @property
    def members(self) -> list[str]:
        """Names of the machine's stored values, without the group's own."""
        prefix = f"{group_prefix(self._group_id)}{MEMBERS}"  # There may be 100,000 pages.
        keys = (key for key in self._revisions if key.startswith(prefix))
        ids = (parse_group_key(key).member_id for key in keys)
        return [f"{MEMBERS}{name}" for name in ids if name is not None]

    def new_keys_bytes(self, changes: Changes) -> int:
        """By how much *changes* increase `keys_bytes`."""
        return self.offsets.new_pages(changes) * self._page_key_bytes

    @property
    def _page_key_bytes(self) -> int:
        return len(self.key) + _PAGE_NAME_BYTES + _KEY_BYTES

    def parts(self, changes: Changes) -> Iterator[Decided]:
        """Split *changes*, which are to be added, into decisions that each fit a write."""
        self.texts.add(changes)
        part: dict[TopicPartition, Committed | None] = {}
        pages: set[PageId] = set()
        size_bytes = 0
        for tp, committed in changes.items():
            page_id = page_of(tp)
            if page_id not in pages:
                page_bytes = self._page_bytes(page_id)
                if pages and (len(pages) == _WRITE_KEYS or size_bytes + page_bytes > _WRITE_BYTES):
                    yield self._part(part, pages)
                    part, pages, size_bytes = {}, set(), 0
                pages.add(page_id)
                size_bytes += page_bytes
            part[tp] = committed
        if part:
            yield self._part(part, pages)

    def _part(self, changes: Changes, pages: Set[PageId]) -> Decided:
        keys_bytes = len(pages) * self._page_key_bytes
        return Decided(changes=changes, pages=pages, keys_bytes=keys_bytes)

    def _page_bytes(self, page_id: PageId) -> int:
        """Of a page in a transaction, once all decisions are stored; it names the key three
        times."""
        return 3 * len(self.key) + _NUMBERS_BYTES + self.texts.size_bytes(page_id)

    def add(self, decided: Decided) -> None:
        """Append *decided* to the queue."""
        self._decided.append(decided)
        self.size_bytes += decided.size_bytes
        self.texts.add(decided.changes)

    def fail(self, code: ErrorCode, *, in_flight: bool) -> None:
        """Fail all queued decisions with *code*; *in_flight*: those of the write in flight too."""
        for decided in self._decided:
            decided.fail(code)
        self._over(self._decided)
        self._decided = []
        if in_flight and self._in_flight is not None:
            for decided in self._in_flight:
                decided.fail(code)
            self._over(self._in_flight)
            self._in_flight = None

    # ── One write ──

    def gather(
        self, value: Callable[[], tuple[str, bytes]]
    ) -> tuple[list[Decided], UnencodedWrite | None]:
        """Take the next decisions and their write; None: they need no write, and are done.

        Args:
            value: returns kind and value of a group that is created by a commit alone.
        """
        assert self._in_flight is None
        write = self._all() if self._deletes else self._first(value)
        assert self._in_flight is not None
        taken = self._in_flight
        if write is None:
            self._in_flight = None
            self._over(taken)
        return taken, write

    def encoded(self, write: GroupWrite) -> GroupWrite:
        """The gathered write is encoded, and about to be sent."""
        self._write = write
        return write

    @property
    def _deletes(self) -> bool:
        return any(decided.delete for decided in self._decided)

    def _all(self) -> UnencodedWrite | None:
        self._in_flight, self._decided = self._decided, []
        if not self.revision:
            return None
        write = GroupWrite(
            revisions={self.key: self.revision},
            deletes=(self.key,),
            prefix=group_prefix(self._group_id),
        )
        return UnencodedWrite(encode=lambda: write)

    def _first(self, value: Callable[[], tuple[str, bytes]]) -> UnencodedWrite | None:
        values: dict[str, bytes | None] = {}
        changes: dict[TopicPartition, Committed | None] = {}
        pages: set[PageId] = set()
        kind, count, size_bytes = "", 0, 0
        for decided in self._decided:
            new = decided.pages - pages
            keys = len(values.keys() | decided.puts.keys()) + len(pages) + len(new)
            more = sum(map(self._page_bytes, new))
            for name, body in decided.puts.items():
                more += len(body or b"") - len(values.get(name) or b"")
            is_over = keys > _WRITE_KEYS or (more > 0 and size_bytes + more > _WRITE_BYTES)
            if count and is_over:
                break
            values.update(decided.puts)
            changes.update(decided.changes)
            pages |= new
            size_bytes += more
            kind = decided.kind or kind
            count += 1
        self._in_flight, self._decided = self._decided[:count], self._decided[count:]
        for decided in self._taken_that_join(pages):
            changes.update(decided.changes)
        self._pages = self.offsets.pages(changes)
        if not self.revision and "" not in values and self._pages:
            kind, values[""] = value()
        return self._made(kind, values)

    def _taken_that_join(self, pages: Set[PageId]) -> list[Decided]:
        """Move decisions that write only *pages* into the write in flight, and return them.  Each
        value has the last word of those before it: the look ends at a value of the machine, and
        what has a page of a decision that waits waits too."""
        joined: list[Decided] = []
        waiting: list[Decided] = []
        their_pages: set[PageId] = set()
        looked = 0
        for decided in self._decided:
            looked += len(decided.pages)
            if decided.puts or looked > _JOIN_LOOK:
                break
            if decided.pages <= pages and their_pages.isdisjoint(decided.pages):
                joined.append(decided)
            else:
                waiting.append(decided)
                their_pages |= decided.pages & pages
        if joined:
            self._decided[: len(joined) + len(waiting)] = waiting
            assert self._in_flight is not None
            self._in_flight += joined
        return joined

    def _made(self, kind: str, values: Mapping[str, bytes | None]) -> UnencodedWrite | None:
        nonce = self._nonce()
        revisions = {self.key: self.revision}
        puts: dict[str, Callable[[], bytes]] = {}
        deletes: list[str] = []
        for name, body in values.items():
            if not name:
                assert body is not None, "a group goes by a deletion"
                stored = StoredGroup(session_id=self._session_id, kind=kind, body=body)
                puts[self.key] = partial(encode_group, stored, nonce)
                continue
            assert name.startswith(MEMBERS)
            key = group_member_key(self._group_id, name.removeprefix(MEMBERS))
            if body is not None:
                puts[key] = partial(encode_member, body, nonce)
            elif key in self._revisions:
                deletes.append(key)
            else:
                continue
            revisions[key] = self._revisions.get(key, 0)
        for page_id, page in self._pages.items():
            key = group_offsets_key(self._group_id, page_id.topic_id, page_id.page)
            revisions[key] = self._revisions.get(key, 0)
            if page:
                puts[key] = partial(encode_page, page, nonce)
            else:
                deletes.append(key)
        if not puts and not deletes:
            return None

        def encode() -> GroupWrite:
            values = {key: encoded() for key, encoded in puts.items()}
            return GroupWrite(revisions=revisions, puts=values, deletes=tuple(deletes))

        size_bytes = sum(len(body or b"") for body in values.values())
        offsets = sum(map(len, self._pages.values()))
        is_long = size_bytes > _LONG_BYTES or offsets > _LONG_OFFSETS
        return UnencodedWrite(encode=encode, is_long=is_long)

    # ── Outcome ──

    def stored(self, revision: int) -> list[Decided]:
        """Apply the write, which is stored at *revision*; return its decisions."""
        taken, write = self._ended()
        for key in write.puts:
            if key == self.key:
                self.revision = revision
                continue
            if key not in self._revisions:
                self.keys_bytes += _key_bytes(key)
            self._revisions[key] = revision
        for key in write.deletes:
            if self._revisions.pop(key, None) is not None:
                self.keys_bytes -= _key_bytes(key)
        if write.prefix:
            self.revision = 0
            self._revisions.clear()
            self.keys_bytes = len(self.key)
        self.offsets.replay(self._pages)
        self._pages = {}
        return taken

    def refused(self) -> list[Decided]:
        """Discard the write, which will never be stored; return its decisions."""
        self._pages = {}
        return self._ended()[0]

    def count_texts(self) -> None:
        """Count `texts` again: decisions will not be stored."""
        self.texts = PageTexts()
        self.texts.add(dict(self.offsets.items()))
        for decided in self._decided:
            self.texts.add(decided.changes)

    def _ended(self) -> tuple[list[Decided], GroupWrite]:
        taken, write = self._in_flight or [], self._write
        self._in_flight = self._write = None
        self._over(taken)
        assert write is not None
        return taken, write

    def _over(self, taken: Iterable[Decided]) -> None:
        self.size_bytes -= sum(decided.size_bytes for decided in taken)


def _key_bytes(key: str) -> int:
    return len(key) + _KEY_BYTES
