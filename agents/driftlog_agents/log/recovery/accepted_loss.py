"""Accepts a loss: an operator confirms that objects or keys of a partition are gone for good.

    examine   `loss_examination` ──▶ the plan: lost ranges
    accept    the same again: is it the plan shown? ──▶ claim ──▶ audit record ──▶ seal the rest,
              gaps as empty ranges ──▶ the partition's key ──▶ release

An agent never accepts a loss by itself: an operator requests it, for a partition that the agent
cannot serve.  The agent does it under a claim, so its writes are fenced like those of any leader.
It leaves keys and a manifest that any takeover can open: the agent that the partition is placed on
claims it as usual.  If it is interrupted, the partition is still offline, and the manifest has what
was sealed; the next attempt starts from there.

The same repairs a served partition that cannot be sealed because an object of its tail is gone: its
leader releases it first.  It also repairs a served partition whose segments are gone: their ranges
become empty, and the rest is unchanged.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import structlog

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.log.leadership.claim_transactions import release
from driftlog_agents.log.leadership.handover import Handover
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.recovery.accepted_loss_plan import LogPiece, LossPlan
from driftlog_agents.log.recovery.flush_object_ends import in_time
from driftlog_agents.log.recovery.loss_examination import LossExamination
from driftlog_agents.log.recovery.lost_partition import (
    LostPartition,
    NotLostError,
    is_served,
    reason_of,
    require_lost,
    require_repairable,
)
from driftlog_agents.log.sealing.sealer import Sealer
from driftlog_agents.log.segments.sealed_range import end_of
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.keys import SESSIONS_PREFIX, parse_session_key
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_tiering.formats.accepted_loss import AcceptedLoss, encode_accepted_loss
from driftlog_tiering.formats.manifest import Manifest, SegmentRef
from driftlog_tiering.formats.manifests import VoidEditError
from driftlog_tiering.stores.object_store import AlreadyExistsError, ObjectStore

_Outcome = AcceptedLoss | Exception


class LossAcceptance:
    """See the module; for one session.

    Args:
        topics: every known topic, by id.
        find: the log of a partition that is led here.
        spawn: runs an acceptance as long as the session lasts.  A cancelled caller does not end it,
            for a partition whose acceptance is interrupted has no leader.
    """

    def __init__(
        self,
        *,
        session: Session,
        objects: ObjectStore,
        examination: LossExamination,
        sealer: Sealer,
        handover: Handover,
        find: Callable[[TopicPartition], PartitionLog | None],
        topics: Mapping[UUID, TopicEntry],
        spawn: Callable[[Coroutine[Any, Any, _Outcome]], asyncio.Task[_Outcome]],
    ) -> None:
        self._session = session
        self._objects = objects
        self._examination = examination
        self._sealer = sealer
        self._keys = sealer.keys
        self._handover = handover
        self._find_log = find
        self._topics = topics
        self._spawn = spawn
        self._works: set[asyncio.Task[_Outcome]] = set()
        self._log = structlog.get_logger()

    async def examine(self, tp: TopicPartition) -> LossPlan:
        """Reads what is lost of *tp*; changes nothing.

        Raises:
            UnavailableError: a store does not answer, or does not return an object that it has.
            CorruptError: an object or key is damaged that this cannot repair.
            LedElsewhereError: see there.
            NotLostError: nothing is lost, or it is ambiguous what is.
            FencedError: the session ended first.
        """
        log = self._check(tp)
        plan = (await self._find(self._topic(tp), tp, log)).plan
        require_lost(log, plan)
        return plan

    async def accept(self, tp: TopicPartition, shown: dict[str, Any], wall_ms: int) -> AcceptedLoss:
        """Accepts the loss if it is the *shown* plan; *wall_ms*: now.

        The partition is claimed again afterwards.  A cancelled caller does not end the work.
        Raises: as `examine`; after UnavailableError it may be repeated.
        """
        work = self._spawn(self._outcome(tp, shown, wall_ms))
        self._works.add(work)
        work.add_done_callback(self._works.discard)
        await asyncio.wait((work,))
        if work.cancelled():
            raise UnavailableError("the agent's session is over: run it again")
        outcome = work.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Cancels every acceptance; the partition stays offline for the next leader."""
        works = list(self._works)
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works)

    async def _outcome(self, tp: TopicPartition, shown: dict[str, Any], wall_ms: int) -> _Outcome:
        """The result of `accept`: the caller raises an error, and the session survives it."""
        try:
            return await self._accept_held(tp, shown, wall_ms)
        except Exception as error:  # noqa: BLE001 - its caller raises it
            entry = self._topics.get(tp.topic_id)
            name = tp.topic_id if entry is None else entry.topic.name
            self._log.warning(
                "loss_not_accepted", partition=f"{name}-{tp.partition}", error=str(error)
            )
            return error

    async def _accept_held(
        self, tp: TopicPartition, shown: dict[str, Any], wall_ms: int
    ) -> AcceptedLoss:
        await self._handover.hold(tp)
        try:
            log = self._check(tp)
            topic, sealed, reason = self._topic(tp), is_served(log), reason_of(log)
            if log is None or log.damage or sealed:
                # Before it is released: it serves, or its buffered batches keep their offsets.
                (await self._find(topic, tp, log)).require(shown)
            if log is None:
                await self._handover.give_back(tp)
            else:
                await self._handover.give_up([log])
            return await self._accept(topic, tp, shown, wall_ms, None if sealed else reason)
        finally:
            self._handover.let(tp)

    def _topic(self, tp: TopicPartition) -> TopicEntry:
        entry = self._topics.get(tp.topic_id)
        if entry is None:
            raise NotLostError("its topic is gone")
        return entry

    def _check(self, tp: TopicPartition) -> PartitionLog | None:
        """The log of *tp*, if it is led here and may be repaired."""
        log = self._find_log(tp)
        require_repairable(log)
        return log

    async def _find(
        self, topic: TopicEntry, tp: TopicPartition, log: PartitionLog | None
    ) -> LostPartition:
        return await self._examination.look(
            topic, await self._examination.keys(tp), None if is_served(log) else reason_of(log)
        )

    async def _accept(
        self,
        topic: TopicEntry,
        tp: TopicPartition,
        shown: Mapping[str, Any],
        wall_ms: int,
        reason: str | None,
    ) -> AcceptedLoss:
        """*reason*: as for `LossExamination.look`."""
        keys = await self._examination.keys(tp)
        found = await self._examination.look(topic, keys, reason)
        found.require(shown)
        log = await self._claim(topic, found)
        try:
            # Only after the claim no other session commits: see `takeover`.
            again = await self._examination.look(topic, keys, reason, found.read)
            if again.plan != found.plan:
                raise UnavailableError("the partition has changed meanwhile: run it again")
            found = again
            loss = found.audit(topic.topic.name, self._session.session_id, wall_ms)
            await self._create(loss.key, encode_accepted_loss(loss))
            self._log.warning(
                "loss_accepted",
                partition=f"{log.topic}-{log.partition}",
                lost=loss.lost,
                objects=loss.objects,
                goes_on_at=loss.goes_on_at,
                audit=loss.key,
            )
            await self._write(log, found)
        except VoidEditError as error:
            raise UnavailableError(f"its manifest has changed: {error}") from error
        finally:
            log.state = State.CLOSED
            await release(
                self._session,
                [transactions.Release(tp, log.leader_epoch, log.leader_revision)],
            )
        return loss

    async def _claim(self, topic: TopicEntry, found: LostPartition) -> PartitionLog:
        """Claims the partition, only to write its keys and manifest."""
        session = self._session
        mine = session.session_id
        kvs = await session.read_prefix(SESSIONS_PREFIX)
        found.require_over({parse_session_key(kv.key) for kv in kvs}, mine)
        txn = transactions.claim(
            mine,
            session.revision,
            [found.claim],
            {topic.topic.name: topic.create_revision},
            cluster=session.cluster,
        )
        compares = (*txn.compares, *found.compares(mine))
        result = await session.transact(replace(txn, compares=compares))
        return found.claimed(topic.topic.name, mine, result)

    async def _create(self, key: str, body: bytes) -> None:
        await self._session.ownership.hold()
        with suppress(AlreadyExistsError):  # an earlier try: no other session has this epoch
            await in_time(lambda: self._objects.create(key, [body]))

    async def _write(self, log: PartitionLog, found: LostPartition) -> None:
        """Seals the pieces; then writes the partition's key."""
        manifest = found.manifest
        if found.segments:
            manifest = await self._sealer.edits.drop_segments(
                manifest, list(found.segments), read_at_ms=found.read_at_ms
            )
            # The key keeps the sessions with unsealed batches.
            await self._keys.write(log, lambda now: replace(now, manifest_version=manifest.version))
            return
        if found.plan.seals:
            for piece in found.plan.pieces:
                manifest = await self._seal(log, found, manifest, piece)
        state = found.state_after(log, manifest, self._session.session_id)
        await self._keys.write(log, lambda _: state)

    async def _seal(
        self, log: PartitionLog, found: LostPartition, manifest: Manifest, piece: LogPiece
    ) -> Manifest:
        """Adds one range to *manifest*, in as many segments as needed."""
        part = found.part(log, piece, self._examination.now_ms())
        while manifest.end < piece.end:
            segments: list[SegmentRef] = []
            stop = piece.end if piece.lost else self._sealer.next_end(part, piece.end)
            manifest = await self._sealer.edits.extend(
                part,
                manifest,
                stop,
                segments,
                read_at_ms=found.read_at_ms,
                lost=found.epochs(log, piece),
            )
            if not piece.lost:
                part.seal(end_of(segments, stop))
        part.state = State.CLOSED
        return manifest
