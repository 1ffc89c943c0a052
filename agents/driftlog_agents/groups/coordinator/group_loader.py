"""Loads groups from the metadata store: claims them for this agent's session, then reads them.

    read the group's key ──▶ claim ──▶ read its members and offsets ──▶ `ServedGroup`
         ▲                     │ another agent wrote it meanwhile
         └─────────────────────┘

The claim writes the group's value back with this session in it (and, in a classic group, with
newly reserved generations).  The previous coordinator compares the group's key in every write, so
its writes fail after the claim: a read after the claim is complete.

Shell.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.stored_value import ClassicValue, claimed_value
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.coordinator.group_runtime import (
    CLASSIC,
    CONSUMER,
    GroupHost,
    Machine,
    ServedGroup,
)
from driftlog_agents.groups.coordinator.repair import UnreadableGroupError
from driftlog_agents.groups.group_configs import GroupConfigs
from driftlog_agents.groups.offsets import GroupOffsets, Page, PageId
from driftlog_agents.groups.storage_format import (
    StoredGroup,
    decode_group,
    decode_member,
    decode_page,
    encode_group,
)
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.log.session.session import Session
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.codec import decode_at
from driftlog_metadata.schema.keys import (
    GROUPS_PREFIX,
    group_key,
    group_prefix,
    parse_group_key,
    session_key,
)
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnsupportedFormatError
from driftlog_metadata.stores.store import (
    CreateRevisionIs,
    Get,
    GetPrefix,
    KeyValue,
    ModRevisionIs,
    Put,
)
from driftlog_metadata.transactions.session_transactions import Txn

_CLAIMS: Final = 20
"""Attempts of one claim: an attempt fails because another agent wrote the group in between."""


LISTED_AT_ONCE: Final = 50
"""Groups in one claim; a transaction has room for about twice as many."""

LISTED_BYTES: Final = 500_000
"""Most bytes of one claim; a single group may be larger."""

_VALUE_BYTES: Final = 2_000
"""Assumed size of a member or of a page of offsets: a listing has the keys and not the values."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A stored group, and its estimated bytes in a transaction, which names each key three times
    and each value once."""

    group_id: str
    size_bytes: int


class GroupLoader:
    """See the module.

    Args:
        new_member_id: returns a new member id that starts with the given prefix.
        topics: returns the topics that groups of KIP-848 assign.
    """

    def __init__(
        self,
        *,
        session: Session,
        host: GroupHost,
        configs: GroupConfigs,
        new_member_id: Callable[[str], str],
        topics: Callable[[], ClusterTopics],
    ) -> None:
        self._session = session
        self._host = host
        self._configs = configs
        self._new_member_id = new_member_id
        self._topics = topics
        self._log = structlog.get_logger()
        self._told: set[str] = set()

    @property
    def _classic(self) -> ClassicSettings:
        return self._configs.settings.classic

    def new(self, group_id: str, kind: str) -> ServedGroup:
        """A new group; its first write stores it."""
        machine = self.machine(group_id, kind)
        return ServedGroup(group_id=group_id, machine=machine, host=self._host)

    def machine(self, group_id: str, kind: str) -> Machine:
        """The machine of a group without members; *kind*: CLASSIC or CONSUMER."""
        if kind == CLASSIC:
            return ClassicGroup(group_id, self._classic, self._new_member_id, self._host.now_ms())
        assert kind == CONSUMER
        settings = self._configs.consumer(group_id)
        return ConsumerGroup(group_id, settings, self._topics(), self._new_member_id)

    def upgraded(self, classic: ClassicGroup) -> ConsumerGroup:
        """The group of KIP-848 that a classic group becomes when a KIP-848 member joins it.

        Raises:
            RefusedError: it cannot be converted.
        """
        return ConsumerGroup.upgraded(
            classic,
            self._configs.consumer(classic.group_id),
            self._topics(),
            self._new_member_id,
            self._host.now_ms(),
        )

    def downgraded(self, group_id: str, value: ClassicValue) -> ClassicGroup:
        """The classic group that a group becomes when its last KIP-848 member leaves."""
        now_ms = self._host.now_ms()
        return ClassicGroup(group_id, self._classic, self._new_member_id, now_ms, stored=value)

    async def listed(self) -> list[Listed]:
        """List every stored group; the store returns keys alone: most groups are another agent's.

        Raises:
            FencedError: the session ended first.
        """
        found: dict[str, None] = {}
        sizes: Counter[str] = Counter()
        for kv in await self._session.read_prefix(GROUPS_PREFIX, keys_only=True):
            try:
                key = parse_group_key(kv.key)
            except ValueError:
                continue  # An unrecognised key.
            sizes[key.group_id] += 3 * len(kv.key) + _VALUE_BYTES
            if key.member_id is None and key.topic_id is None:
                found[key.group_id] = None
        return [Listed(group_id, sizes[group_id]) for group_id in found]

    async def load(self, group_id: str, wanted: Callable[[], bool]) -> ServedGroup | None:
        """Claim and read a group, while *wanted* returns True; None: it does not exist.

        Raises:
            RefusedError: NOT_COORDINATOR: another agent seems to coordinate it;
                UNKNOWN_SERVER_ERROR: its stored values cannot be read.
            FencedError: the session ended first.
        """
        try:
            return await self._load(group_id, wanted)
        except CorruptError as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                self._log.error(
                    "group_unreadable",
                    group=group_id,
                    error=str(error),
                    advice="the group is unavailable until that key is restored, or the agent "
                    "is upgraded; kafka-consumer-groups.sh --delete removes the group",
                )
            raise UnreadableGroupError(str(error)) from error

    async def _load(self, group_id: str, wanted: Callable[[], bool]) -> ServedGroup | None:
        key = group_key(group_id)
        kv = await self._session.read(key)
        for _ in range(_CLAIMS):
            if not wanted():
                break
            if kv is None:
                return None
            claim = self._as_claimed(kv)
            revision, (kv,) = await self._claim([(kv, claim)])
            if revision:
                kvs = await self._session.read_prefix(group_prefix(group_id))
                return self._served(group_id, claim, revision, kvs)
        raise RefusedError(ErrorCode.NOT_COORDINATOR)

    async def load_many(self, some: Sequence[Listed]) -> dict[str, ServedGroup]:
        """Claim and read listed groups, `LISTED_AT_ONCE` at most; the caller loads groups that are
        missing in the result one by one.

        Raises:
            FencedError: the session ended first.
        """
        gets = tuple(Get(group_key(one.group_id)) for one in some)
        reads = (await self._session.transact(Txn((), gets))).reads
        claims: dict[str, tuple[KeyValue, StoredGroup]] = {}
        size_bytes = 0
        for one, kvs in zip(some, reads, strict=True):
            for kv in kvs:
                size_bytes += one.size_bytes + len(kv.value)
                if not claims or size_bytes <= LISTED_BYTES:
                    with contextlib.suppress(CorruptError):  # `load` logs it.
                        claims[one.group_id] = kv, self._as_claimed(kv)
        if not claims:
            return {}
        revision, _ = await self._claim(list(claims.values()))
        if not revision:
            return {}
        prefixes = tuple(GetPrefix(group_prefix(group_id)) for group_id in claims)
        result = await self._session.transact(Txn((), prefixes))
        found: dict[str, ServedGroup] = {}
        for (group_id, (_, claim)), kvs in zip(claims.items(), result.reads, strict=True):
            with contextlib.suppress(CorruptError):
                found[group_id] = self._served(group_id, claim, revision, kvs)
        return found

    def _as_claimed(self, kv: KeyValue) -> StoredGroup:
        with _reading(kv.key):
            return self._claimed(kv)

    def _claimed(self, kv: KeyValue) -> StoredGroup:
        stored = decode_at(kv.key, kv.value, decode_group)
        if stored.kind not in (CLASSIC, CONSUMER):  # A newer agent can read it: do not claim it.
            raise UnsupportedFormatError(
                f"{kv.key}: a group of kind {stored.kind!r}: upgrade this driftlog"
            )
        body = stored.body
        if stored.kind == CLASSIC:
            body = decode_at(kv.key, body, claimed_value)
        return StoredGroup(session_id=self._session.session_id, kind=stored.kind, body=body)

    async def _claim(
        self, claims: Sequence[tuple[KeyValue, StoredGroup]]
    ) -> tuple[int, list[KeyValue | None]]:
        """Claim all or none; return the revision, 0 if the claim failed, and the current values."""
        session = self._session
        fence = session_key(session.session_id)
        values = [encode_group(claim, self._host.nonce()) for _, claim in claims]
        keys = [kv.key for kv, _ in claims]
        result = await session.transact(
            Txn(
                compares=(
                    CreateRevisionIs(fence, session.revision),
                    *(ModRevisionIs(kv.key, kv.mod_revision) for kv, _ in claims),
                ),
                then=tuple(map(Put, keys, values)),
                otherwise=(Get(fence), *map(Get, keys)),
            )
        )
        there: list[KeyValue | None] = [None for _ in claims]
        if result.succeeded:
            return result.revision, there
        fences, *now = result.reads
        if not fences or fences[0].create_revision != session.revision:
            raise FencedError("the session ended before groups were claimed")
        there = [kvs[0] if kvs else None for kvs in now]
        first = there[0]
        if first is not None and [kv and kv.value for kv in there] == values:
            return first.mod_revision, there  # An earlier attempt, whose answer was lost.
        return 0, there

    def _served(
        self, group_id: str, stored: StoredGroup, revision: int, kvs: Sequence[KeyValue]
    ) -> ServedGroup:
        with _reading(group_key(group_id)):
            return self._read(group_id, stored, revision, kvs)

    def _read(
        self, group_id: str, stored: StoredGroup, revision: int, kvs: Sequence[KeyValue]
    ) -> ServedGroup:
        bodies = {"": stored.body}
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
        return ServedGroup(
            group_id=group_id,
            machine=self._restored(group_id, stored.kind, bodies),
            host=self._host,
            offsets=offsets,
            revision=revision,
            revisions=revisions,
        )

    def _restored(self, group_id: str, kind: str, bodies: Mapping[str, bytes]) -> Machine:
        now_ms = self._host.now_ms()
        try:
            if kind == CONSUMER:
                topics, settings = self._topics(), self._configs.consumer(group_id)
                return ConsumerGroup.restore(
                    group_id, bodies, settings, topics, self._new_member_id, now_ms
                )
            return ClassicGroup.restore(
                group_id, bodies[""], self._classic, self._new_member_id, now_ms
            )
        except CorruptError as error:
            raise type(error)(f"{group_key(group_id)}: {error}") from error


@contextlib.contextmanager
def _reading(key: str) -> Iterator[None]:
    """A group whose values make its code fail (a bug) is unreadable, and ends no agent."""
    try:
        yield
    except CorruptError:
        raise
    except Exception as error:
        raise CorruptError(f"{key}: {error!r}") from error
