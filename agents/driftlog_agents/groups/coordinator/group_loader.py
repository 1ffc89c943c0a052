"""Loads groups from the metadata store: claims them for this agent's session, then reads them.

    read the group's key ──▶ claim ──▶ read its members and offsets ──▶ `ServedGroup`
         ▲                     │ another agent wrote it meanwhile
         └─────────────────────┘

The claim writes the group's value back with this session in it (and, in a classic group, with
newly reserved generations).  The previous coordinator compares the group's key in every write, so
its writes fail after the claim: a read after the claim is complete.

A request reads a bounded number of bytes, whatever clients have stored, and a thread decodes them.

Shell.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.stored_value import ClassicValue
from driftlog_agents.groups.consumer.machine import ConsumerGroup
from driftlog_agents.groups.coordinator.group_runtime import (
    GroupHost,
    Machine,
    ServedGroup,
)
from driftlog_agents.groups.group_configs import GroupConfigs
from driftlog_agents.groups.storage_format import CLASSIC, CONSUMER, StoredGroup
from driftlog_agents.groups.stored.repair import UnreadableGroupError
from driftlog_agents.groups.stored.stored_groups import (
    LISTED_BYTES,
    GroupClaim,
    GroupListing,
    Listed,
    claim_of,
    decode_values,
    in_parts,
    readable,
    reading,
)
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.log.session.session import Session
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.keys import (
    GROUPS_PREFIX,
    group_key,
    group_prefix,
    session_key,
)
from driftlog_metadata.stores.errors import (
    AnswerTooLargeError,
    CorruptError,
    FencedError,
)
from driftlog_metadata.stores.store import (
    MAX_TXN_BYTES,
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

_NUMBERS_BYTES: Final = 32 * 1024
"""Most bytes of a page of offsets without its texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClaimedGroup:
    """A claimed group as it is stored.

    ``restore`` returns the machine of these values.  ``kvs``: members and offsets.
    """

    group_id: str
    group: StoredGroup
    revision: int
    kvs: Sequence[KeyValue]
    host: GroupHost
    restore: Callable[[Mapping[str, bytes]], Machine]

    def restored(self) -> ServedGroup:
        """The group, made in a thread: a value takes some 10 ms.

        Raises:
            CorruptError: a value cannot be read.
        """
        key = group_key(self.group_id)
        with reading(key):
            values = decode_values(self.group, self.kvs)
            try:
                machine = self.restore(values.bodies)
            except CorruptError as error:
                raise type(error)(f"{key}: {error}") from error
            return ServedGroup(
                group_id=self.group_id,
                machine=machine,
                host=self.host,
                offsets=values.offsets,
                revision=self.revision,
                revisions=values.revisions,
            )


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
        kvs = await self._session.read_prefix(GROUPS_PREFIX, keys_only=True)
        listing = GroupListing()
        async for kv in sliced(kvs):
            listing.add(kv.key)
        return [one async for one in sliced(listing.groups())]

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
            claim = await self._host.offload(
                claim_of, kv, self._session.session_id, self._host.nonce()
            )
            revision, (kv,) = await self._claim([claim])
            if revision:
                kvs = await self._session.read_prefix(group_prefix(group_id))
                read = self._values(group_id, claim.group, revision, kvs)
                group: ServedGroup = await self._host.offload(read.restored)
                return group
        raise RefusedError(ErrorCode.NOT_COORDINATOR)

    async def load_many(self, some: Sequence[Listed]) -> dict[str, ServedGroup]:
        """Claim and read listed groups, `LISTED_AT_ONCE` at most; the caller loads groups that are
        missing in the result one by one.

        Raises:
            FencedError: the session ended first.
        """
        listed = {group_key(one.group_id): one for one in some}
        session_id = self._session.session_id
        try:
            kvs = await self._read_own(list(listed.values()))
            claims: dict[str, GroupClaim] = await self._host.offload(
                readable,
                {kv.key: partial(claim_of, kv, session_id, self._host.nonce()) for kv in kvs},
            )
            revision = (await self._claim(list(claims.values())))[0] if claims else 0
        except AnswerTooLargeError:
            return {}  # values have grown since they were listed
        if not revision:
            return {}
        kvs_of = await self._read_values([listed[key] for key in claims])
        values = [
            self._values(listed[key].group_id, claim.group, revision, kvs_of[key])
            for key, claim in claims.items()
        ]
        found: dict[str, ServedGroup] = await self._host.offload(
            readable, {of.group_id: of.restored for of in values}
        )
        return found

    async def _read_own(self, some: Sequence[Listed]) -> list[KeyValue]:
        """The own values of the first of *some*: as many as fit one claim."""
        found: list[KeyValue] = []
        size_bytes = 0
        for part in in_parts(some, self._configs.settings.read_bytes, lambda _: MAX_TXN_BYTES):
            gets = tuple(Get(group_key(one.group_id)) for one in part)
            reads = (await self._session.transact(Txn((), gets))).reads
            for one, kvs in zip(part, reads, strict=True):
                for kv in kvs:
                    size_bytes += one.key_bytes + len(kv.value)
                    if found and size_bytes > LISTED_BYTES:
                        return found
                    found.append(kv)
        return found

    async def _read_values(self, some: Sequence[Listed]) -> dict[str, Sequence[KeyValue]]:
        """The members and offsets of claimed groups, by the groups' keys.  A group that may be
        large is read alone, page by page."""
        page_bytes = self._host.page_text_bytes + _NUMBERS_BYTES

        def most_bytes(one: Listed) -> int:
            return one.members * MAX_TXN_BYTES + one.pages * page_bytes

        found: dict[str, Sequence[KeyValue]] = {}
        for part in in_parts(some, self._configs.settings.read_bytes, most_bytes):
            reads = await self._read_prefixes([group_prefix(one.group_id) for one in part])
            keys = (group_key(one.group_id) for one in part)
            found.update(zip(keys, reads, strict=True))
        return found

    async def _read_prefixes(self, prefixes: Sequence[str]) -> Sequence[Sequence[KeyValue]]:
        if len(prefixes) > 1:
            with contextlib.suppress(AnswerTooLargeError):  # they have grown since they were listed
                return (
                    await self._session.transact(Txn((), tuple(map(GetPrefix, prefixes))))
                ).reads
        return [await self._session.read_prefix(prefix) for prefix in prefixes]

    async def _claim(self, claims: Sequence[GroupClaim]) -> tuple[int, list[KeyValue | None]]:
        """Claim all or none; return the revision, 0 if the claim failed, and the current values."""
        session = self._session
        fence = session_key(session.session_id)
        values = [claim.value for claim in claims]
        keys = [claim.kv.key for claim in claims]
        result = await session.transact(
            Txn(
                compares=(
                    CreateRevisionIs(fence, session.revision),
                    *(ModRevisionIs(claim.kv.key, claim.kv.mod_revision) for claim in claims),
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

    def _values(
        self, group_id: str, group: StoredGroup, revision: int, kvs: Sequence[KeyValue]
    ) -> _ClaimedGroup:
        is_consumer = group.kind == CONSUMER
        settings, topics = self._configs.consumer(group_id), self._topics()

        def restore(bodies: Mapping[str, bytes]) -> Machine:
            now_ms = self._host.now_ms()  # sessions go on from here, and not from before the wait
            if not is_consumer:
                return ClassicGroup.restore(
                    group_id, bodies[""], self._classic, self._new_member_id, now_ms
                )
            return ConsumerGroup.restore(
                group_id,
                bodies,
                settings=settings,
                topics=topics,
                new_member_id=self._new_member_id,
                now_ms=now_ms,
            )

        return _ClaimedGroup(
            group_id=group_id,
            group=group,
            revision=revision,
            kvs=kvs,
            host=self._host,
            restore=restore,
        )
