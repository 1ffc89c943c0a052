"""One group that this agent coordinates: its machine and its offsets, and what they wait for.

    request ──▶ machine ──▶ Answer ──▶ the handler that waits
                       └──▶ Persist ─┐
    commit ──▶ Changes ──────────────┴─▶ decided ──gather──▶ one write ──▶ stored ──▶ replay,
                                                                           persisted, answered

What is decided is written in its order; what gathers while a write is in flight goes together in
the next.  A group that is dropped answers who waits with the reason; a write of its that is in
flight is still answered as what it came to.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from driftlog_agents.groups.classic import ClassicGroup
from driftlog_agents.groups.classic_description import OffsetExpiry
from driftlog_agents.groups.consumer import ConsumerGroup
from driftlog_agents.groups.consumer_messages import ResolveRegexes
from driftlog_agents.groups.effects import Answer, Persist
from driftlog_agents.groups.offsets import (
    Changes,
    Committed,
    GroupOffsets,
    Page,
    PageId,
    page_of,
)
from driftlog_agents.groups.stored import StoredGroup, encode_group, encode_member, encode_page
from driftlog_agents.groups.writes import GroupWrite, GroupWrites
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.keys import (
    group_key,
    group_member_key,
    group_offsets_key,
    group_prefix,
    parse_group_key,
)

Machine = ClassicGroup | ConsumerGroup
GroupEffect = Answer | Persist | ResolveRegexes

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
"""Kinds of groups, as they are stored and as ListGroups has them."""

_WRITE_KEYS: Final = 100
"""Keys of one write, and a few more: what a transaction holds.  Commits of more pages are written
one part after the other."""

_MAX_DECIDED: Final = 2_000
"""Decisions of a group that wait to be written.  More are refused: the store is away or full."""

_MEMBERS: Final = "members/"


@dataclass(slots=True, kw_only=True)
class GroupShell:
    """What a group needs of the agent around it."""

    session_id: str
    writes: GroupWrites
    now_ms: Callable[[], int]
    """Since 1970, and never back while the session lives."""
    nonce: Callable[[], str]
    schedule: "Callable[[ServedGroup], None]"
    """Look at the group's `deadline_ms` again."""
    lost: "Callable[[ServedGroup], None]"
    """Somebody else coordinates it."""
    resolve: "Callable[[ServedGroup, ResolveRegexes], None]"
    """Match patterns with topics, where it holds up nobody, and tell `ServedGroup.resolved`."""
    removed: "Callable[[ServedGroup], None]"
    """It is not there any more: deleted, or never stored and of no use."""


@dataclass(slots=True, kw_only=True)
class _Decided:
    """One thing to be written."""

    machine: Machine | None = None
    token: int = 0
    """Of the Persist of *machine* that this ends."""
    kind: str = ""
    puts: Mapping[str, bytes | None] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    delete: bool = False
    done: asyncio.Future[None] | None = None


class ServedGroup:
    """See the module.

    Args:
        revision: mod revision of the group's key; 0: it is not stored yet.
        revisions: the same of its members' and pages' keys.
    """

    def __init__(
        self,
        *,
        group_id: str,
        machine: Machine,
        shell: GroupShell,
        offsets: GroupOffsets | None = None,
        revision: int = 0,
        revisions: Mapping[str, int] | None = None,
    ) -> None:
        self.group_id = group_id
        self.key = group_key(group_id)
        self.machine = machine
        self.offsets = offsets or GroupOffsets()
        self.revision = revision
        self._shell = shell
        self._revisions = dict(revisions or {})
        self._decided: list[_Decided] = []
        self._in_flight: list[_Decided] | None = None
        self._writing: GroupWrite | None = None
        self._pages: dict[PageId, Page] = {}
        """Of the write in flight."""
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0
        self._reply: Any = None
        self.dropped: ErrorCode | None = None
        """Why it is not served here any more."""
        self.scheduled_ms: int | None = None
        """When the coordinator will look at it; the coordinator's."""

    # ── What it is ──

    @property
    def kind(self) -> str:
        """Which protocol it is of."""
        return CLASSIC if isinstance(self.machine, ClassicGroup) else CONSUMER

    @property
    def classic(self) -> ClassicGroup | None:
        """Its machine, if it is of the classic protocol."""
        return self.machine if isinstance(self.machine, ClassicGroup) else None

    @property
    def consumer(self) -> ConsumerGroup | None:
        """Its machine, if it is of KIP-848."""
        return self.machine if isinstance(self.machine, ConsumerGroup) else None

    @property
    def state(self) -> str:
        """As ListGroups has it."""
        return self.machine.state

    @property
    def protocol_type(self) -> str:
        """As ListGroups has it; empty: none."""
        if isinstance(self.machine, ClassicGroup):
            return self.machine.protocol_type or ""
        return CONSUMER

    def become(self, machine: Machine) -> None:
        """Change the protocol of the group, which nobody is in; its offsets stay.

        Raises:
            RefusedError: COORDINATOR_LOAD_IN_PROGRESS: something of it is being written.
        """
        assert self.machine.is_empty
        if self._decided or self._in_flight is not None:
            raise RefusedError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self.machine = machine
        if isinstance(machine, ClassicGroup):  # The other one stores itself with its first member.
            members = (parse_group_key(key).member_id for key in self._revisions)
            puts = {f"{_MEMBERS}{name}": None for name in members if name is not None}
            self._decided.append(_Decided(kind=CLASSIC, puts={**puts, "": machine.value}))
            self._wake()

    # ── What clients ask ──

    async def ask(
        self,
        event: Callable[[int, int], Sequence[GroupEffect]],
        on_close: set[Callable[[], None]] | None = None,
    ) -> Any:
        """Have the machine answer; *event* is given a request id and the time.

        Args:
            on_close: called when nobody waits for the answer any more.

        Raises:
            RefusedError: the group is not served here any more, or nobody waits.
        """
        if self.dropped is not None:
            raise RefusedError(self.dropped)
        self._asked = request_id = self._asked + 1
        self._apply(event(request_id, self._shell.now_ms()))
        reply, self._reply = self._reply, None
        self._shell.schedule(self)
        if reply is not None:
            return reply
        future = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future

        def gone() -> None:
            if not future.done():
                future.set_exception(RefusedError(ErrorCode.NETWORK_EXCEPTION, "nobody waits"))

        if on_close is not None:
            on_close.add(gone)
        try:
            return await future
        finally:
            self._waiting.pop(request_id, None)
            if on_close is not None:
                on_close.discard(gone)

    def tick(self) -> None:
        """The machine's time has come."""
        self._apply(self.machine.tick(self._shell.now_ms()))

    @property
    def deadline_ms(self) -> int | None:
        """When to `tick` next."""
        return self.machine.deadline_ms

    @property
    def is_writing(self) -> bool:
        """Whether a write of it is in flight."""
        return self._in_flight is not None

    @property
    def is_of_no_use(self) -> bool:
        """Whether nothing is stored of it, nor will be, and nobody is in it."""
        return not (
            self.revision
            or self._decided
            or self._in_flight
            or self._waiting
            or self.machine.deadline_ms is not None
        )

    async def store(self, changes: Changes) -> None:
        """Write *changes* of its offsets; returns when they are stored.

        Raises:
            RefusedError: they are not, as far as we know.
        """
        if self.dropped is not None:
            raise RefusedError(self.dropped)
        if len(self._decided) >= _MAX_DECIDED:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        loop = asyncio.get_running_loop()
        parts = list(_parts(changes))
        for part in parts:
            decided = _Decided(changes=part, done=loop.create_future())
            self._decided.append(decided)
            parts_done = decided.done
        if parts:
            self._wake()
            assert parts_done is not None
            await parts_done

    async def delete(self) -> ErrorCode:
        """Delete it and its offsets, if it is empty; returns when it is gone.

        Raises:
            RefusedError: it is not, as far as we know.
        """
        if self.dropped is not None:
            raise RefusedError(self.dropped)
        refused = self.machine.begin_delete()
        if refused is not ErrorCode.NONE:
            return refused
        if not self.revision and self._in_flight is None and not self._decided:
            self._removed()
            return ErrorCode.NONE
        decided = _Decided(delete=True, done=asyncio.get_running_loop().create_future())
        self._decided.append(decided)
        self._wake()
        assert decided.done is not None
        await decided.done
        return ErrorCode.NONE

    async def expire(self, retention_ms: int, name_of: Callable[[UUID], str]) -> int:
        """Forget offsets that were kept long enough, and the group when it is empty then.

        Returns how many went.

        Raises:
            RefusedError: they are not gone, as far as we know.
        """
        since_ms: Callable[[Committed], int]
        expiry, empty_since_ms = OffsetExpiry.FROM_COMMIT, None
        if isinstance(self.machine, ClassicGroup):
            expiry, empty_since_ms = self.machine.offsets_expire(), self.machine.empty_since_ms
        if expiry is OffsetExpiry.FROM_EMPTY and empty_since_ms is not None:
            since_ms = lambda _: empty_since_ms  # noqa: E731
        elif expiry is OffsetExpiry.FROM_COMMIT:
            since_ms = lambda committed: committed.commit_ms  # noqa: E731
        else:
            return 0
        expired = self.offsets.expire(
            self._shell.now_ms(),
            retention_ms,
            since_ms,
            lambda topic_id: self.machine.is_subscribed_to(name_of(topic_id)),
        )
        if expired:
            await self.store(expired)
        if not self.offsets and not self._decided and self._in_flight is None:
            await self.delete()
        return len(expired)

    def drop(self, code: ErrorCode, *, session_over: bool = False) -> None:
        """Answer who waits with *code*, and serve nothing any more."""
        if self.dropped is None:
            self.dropped = code
            if isinstance(self.machine, ClassicGroup):
                effects: Sequence[GroupEffect] = self.machine.drop(code)
            else:
                effects = self.machine.resign(code)
            for effect in effects:
                if isinstance(effect, Answer):
                    self._answer(effect)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(RefusedError(code))
            _fail(self._decided, code)
            self._decided = []
        if session_over and self._in_flight is not None:
            _fail(self._in_flight, code)
            self._in_flight = None

    # ── Effects ──

    def _apply(self, effects: Iterable[GroupEffect]) -> None:
        for effect in effects:
            match effect:
                case Answer():
                    self._answer(effect)
                case Persist(token, puts):
                    self._persist(token, puts)
                case ResolveRegexes():
                    self._shell.resolve(self, effect)

    def resolved(self, topics: Mapping[str, frozenset[str]] | None) -> None:
        """What `ResolveRegexes` asked for; None: it could not be done."""
        if self.dropped is None and isinstance(self.machine, ConsumerGroup):
            self._apply(self.machine.regexes_resolved(topics, self._shell.now_ms()))
            self._shell.schedule(self)

    def _answer(self, answer: Answer) -> None:
        future = self._waiting.get(answer.request_id)
        if future is None:
            if answer.request_id == self._asked:
                self._reply = answer.response
        elif not future.done():
            future.set_result(answer.response)

    def _persist(self, token: int, puts: Mapping[str, bytes | None]) -> None:
        assert len(puts) <= _WRITE_KEYS
        decided = _Decided(machine=self.machine, token=token, kind=self.kind, puts=puts)
        self._decided.append(decided)
        self._wake()

    def _wake(self) -> None:
        if self._in_flight is None:
            self._shell.writes.wake(self)

    # ── Writer ──

    def gather(self) -> GroupWrite | None:
        """See `writes.Writer`."""
        while self._decided and self._in_flight is None:
            taken, write = self._gathered()
            if write is None:
                if any(decided.delete for decided in taken):
                    self._removed()
                self._end(taken)
                continue
            self._in_flight, self._writing = taken, write
            return write
        return None

    def _gathered(self) -> tuple[list[_Decided], GroupWrite | None]:
        if any(decided.delete for decided in self._decided):
            taken, self._decided = self._decided, []
            write = None
            if self.revision:
                write = GroupWrite(
                    revisions={self.key: self.revision},
                    deletes=(self.key,),
                    prefix=group_prefix(self.group_id),
                )
            return taken, write
        values: dict[str, bytes | None] = {}
        changes: dict[Any, Any] = {}
        pages: set[PageId] = set()
        count = 0
        for decided in self._decided:
            touched = pages | {page_of(tp) for tp in decided.changes}
            if count and len(values.keys() | decided.puts.keys()) + len(touched) > _WRITE_KEYS:
                break
            values.update(decided.puts)
            changes.update(decided.changes)
            pages = touched
            count += 1
        taken, self._decided = self._decided[:count], self._decided[count:]
        self._pages = self.offsets.pages(changes)
        kind = next((decided.kind for decided in reversed(taken) if "" in decided.puts), CLASSIC)
        if not self.revision and "" not in values and self._pages:
            assert isinstance(self.machine, ClassicGroup)
            values[""] = self.machine.value  # A simple group is made by what it commits.
        return taken, self._write(kind, values)

    def _write(self, kind: str, values: Mapping[str, bytes | None]) -> GroupWrite | None:
        nonce = self._shell.nonce()
        revisions = {self.key: self.revision}
        puts: dict[str, bytes] = {}
        deletes: list[str] = []
        for name, body in values.items():
            if not name:
                assert body is not None, "a group goes by `delete`"
                stored = StoredGroup(session_id=self._shell.session_id, kind=kind, body=body)
                puts[self.key] = encode_group(stored, nonce)
                continue
            assert name.startswith(_MEMBERS)
            key = group_member_key(self.group_id, name.removeprefix(_MEMBERS))
            if body is not None:
                puts[key] = encode_member(body, nonce)
            elif key in self._revisions:
                deletes.append(key)
            else:
                continue
            revisions[key] = self._revisions.get(key, 0)
        for page_id, page in self._pages.items():
            key = group_offsets_key(self.group_id, page_id.topic_id, page_id.page)
            revisions[key] = self._revisions.get(key, 0)
            if page:
                puts[key] = encode_page(page, nonce)
            else:
                deletes.append(key)
        if not puts and not deletes:
            return None
        return GroupWrite(revisions=revisions, puts=puts, deletes=tuple(deletes))

    def stored(self, revision: int) -> None:
        """See `writes.Writer`."""
        taken, write = self._in_flight, self._writing
        assert write is not None
        self._in_flight = self._writing = None
        for key in write.puts:
            if key == self.key:
                self.revision = revision
            else:
                self._revisions[key] = revision
        for key in write.deletes:
            self._revisions.pop(key, None)
        self.offsets.replay(self._pages)
        self._pages = {}
        if write.prefix:
            self.revision = 0
            self._revisions.clear()
            self._removed()
        self._end(taken or [])
        if self.dropped is None and self._decided:
            self._wake()

    def _removed(self) -> None:
        if self.dropped is None:
            self.dropped = ErrorCode.NOT_COORDINATOR
            self._shell.removed(self)

    def _end(self, taken: list[_Decided]) -> None:
        for decided in taken:
            if decided.done is not None and not decided.done.done():
                decided.done.set_result(None)
            if decided.machine is self.machine and self.dropped is None:
                self._apply(self.machine.persisted(decided.token, self._shell.now_ms()))
                self._shell.schedule(self)

    def refused(self) -> None:
        """See `writes.Writer`."""
        taken, self._in_flight, self._writing = self._in_flight or [], None, None
        self._pages = {}
        _fail(taken, ErrorCode.NOT_COORDINATOR)
        self._shell.lost(self)

    def too_large(self) -> None:
        """See `writes.Writer`."""
        taken, self._in_flight, self._writing = self._in_flight or [], None, None
        self._pages = {}
        _fail(taken, ErrorCode.UNKNOWN_SERVER_ERROR)
        for decided in taken:
            if decided.machine is self.machine and self.dropped is None:
                code = ErrorCode.UNKNOWN_SERVER_ERROR
                now_ms = self._shell.now_ms()
                self._apply(self.machine.not_persisted(decided.token, code, now_ms))
                self._shell.schedule(self)
        if self.dropped is None and self._decided:
            self._wake()


def _parts(changes: Changes) -> Iterable[Changes]:
    """Changes of so many pages that a transaction holds them."""
    part: dict[Any, Any] = {}
    pages: set[PageId] = set()
    for tp, committed in changes.items():
        page_id = page_of(tp)
        if page_id not in pages and len(pages) == _WRITE_KEYS:
            yield part
            part, pages = {}, set()
        pages.add(page_id)
        part[tp] = committed
    if part:
        yield part


def _fail(decided: Iterable[_Decided], code: ErrorCode) -> None:
    for one in decided:
        if one.done is not None and not one.done.done():
            one.done.set_exception(RefusedError(code))
            one.done.exception()  # It is no bug that nobody waits for a part of a commit.
