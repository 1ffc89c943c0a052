"""Revokes the lease of an agent that cannot commit while others can, and probes until it recovers.

    a session ── watch ──▶ its lease is revoked, and it ends
    no session ── until_fit ──▶ probe the bucket and the disk ──▶ the next session
    another's session asks ── watch ──▶ probe the bucket ──▶ this session answers: it can commit

Reads count as well: an agent that cannot read its objects seals nothing, and its producers wait
when it may hold no more unsealed data.  The cause may be one object that no agent can read, so the
agent probes the bucket first.

An agent that cannot commit asks the others in its session's key.  An agent without producers does
not commit either; only a probe, and a look at the cluster file, show that it can.  A few agents
probe while an agent asks.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import Final

import structlog

from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.health.write_health import HealthStep, WriteHealth, WriteHealthSettings
from driftlog_agents.health.write_probe import WriteProbe
from driftlog_agents.log.log_session import Engine
from driftlog_metadata.schema.codec import decode_head
from driftlog_metadata.schema.keys import HEADS_PREFIX, head_key
from driftlog_metadata.schema.model import Role
from driftlog_metadata.stores.errors import (
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.stores.store import MetadataStore

_TICK_S: Final = 1.0

_DEADLINE_S: Final = 10.0
"""Timeout of one read of the heads."""

_ASKED: Final = 3
"""Agents that answer a question; more: more requests and no more information."""


class WriteHealthMonitor:
    """See the module."""

    def __init__(
        self,
        *,
        node_id: int,
        metadata: MetadataStore,
        probe: WriteProbe,
        view: ClusterView,
        rng: Random,
        now_ms: Callable[[], float],
        settings: WriteHealthSettings | None = None,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._probe = probe
        self._view = view
        self._rng = rng
        self._now_ms = now_ms
        self._fitness = WriteHealth(settings)
        self._every_s = (settings or WriteHealthSettings()).look_every_ms / 1000
        self._log = structlog.get_logger()

    @property
    def unfit(self) -> bool:
        """Whether the agent has stepped down and no probe has succeeded since."""
        return self._fitness.unfit

    # ── During a session ──

    async def watch(self, engine: Engine) -> None:
        """Watch until the agent is unfit.

        Raises:
            FencedError: the agent is unfit and its lease is revoked, or the session ended.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ask(engine))
                tasks.create_task(self._answer(engine))
                await self._watch(engine)
        except* FencedError as group:
            raise FencedError(str(group.exceptions[0])) from group

    async def _watch(self, engine: Engine) -> None:
        flushes = followed = engine.health.flushes
        while True:
            await asyncio.sleep(_TICK_S)
            now_ms = self._now_ms()
            writes = flushes.since_ms is not None
            outage = flushes if writes else engine.health.reads(now_ms)
            if outage is not followed:
                followed = outage
                self._fitness.tick(None, now_ms)
            step = self._fitness.tick(outage.since_ms, now_ms)
            if step is HealthStep.LOOK:
                # One object may be the cause of failing reads: no other agent could read it either,
                # while this agent reads all others.
                ours = writes or await self._probe.bucket() is not None
                done = await self._done(commits=writes) if ours else None
                self._fitness.looked(done, self._now_ms())
            elif step is HealthStep.STEP_DOWN:
                self._say_unfit(outage.error, seconds=round(outage.lasted_ms(now_ms) / 1000))
                await engine.session.close()
                raise FencedError("the agent could not commit while other agents could")

    async def _ask(self, engine: Engine) -> None:
        """Set in the session's key whether this agent asks which agents can commit."""
        status = engine.status
        while True:
            await asyncio.sleep(_TICK_S)
            asks = self._fitness.asks(self._now_ms()) and bool(self._others())
            if asks != status.asks and not self.unfit:
                await status.ask(asks)

    async def _answer(self, engine: Engine) -> None:
        """While an agent asks, count successful probes in the session's key, at its interval."""
        status = engine.status
        while True:
            await asyncio.sleep(_TICK_S)
            if not status.asks and engine.ready.is_set() and self._is_asked():
                if await self._probe.bucket() is None and await _may_commit(engine):
                    await status.prove()
                await asyncio.sleep(self._every_s - _TICK_S)

    def _is_asked(self) -> bool:
        sessions = self._view.sessions.values()
        asking = {entry.said.node_id for entry in sessions if entry.said.asks}
        asked = [node for node in self._view.placed() if node not in asking]
        return bool(asking) and self._node_id in asked[:_ASKED]

    async def _done(self, *, commits: bool) -> dict[str, int] | None:
        """Counts of proofs of other agents' live sessions and, with *commits*, of their commits;
        None: unknown.  Commits say nothing about reads: a commit reads no object.
        """
        others = self._others()
        done = {
            f"{session_id} could": entry.said.proofs
            for session_id, entry in self._view.sessions.items()
            if session_id in others
        }
        if not others or not commits:
            return done
        try:
            async with asyncio.timeout(_DEADLINE_S):
                _, kvs = await self._metadata.get_prefix(HEADS_PREFIX)
        except (UnavailableError, OutcomeUnknownError, TimeoutError):
            return None
        keys = {head_key(session_id): session_id for session_id in others}
        for kv in kvs:
            # Other keys, and unreadable heads, have no information.
            if kv.key in keys:
                with contextlib.suppress(CorruptError):
                    done[keys[kv.key]] = decode_head(kv.value)
        return done

    def _others(self) -> set[str]:
        """Other sessions that could commit in the place of this one: not those of agents that only
        seal, beside which the only agent that serves never steps down."""
        agents = self._view.agents
        never = {node for node, agent in agents.items() if Role.SERVE not in agent.roles}
        never.add(self._node_id)
        sessions = self._view.sessions.items()
        return {name for name, entry in sessions if entry.said.node_id not in never}

    def _say_unfit(self, error: str, **facts: int) -> None:
        self._log.error(
            "agent_stepped_down",
            error=error,
            **facts,
            advice="other agents commit and this agent cannot: it releases its partitions, and "
            "takes none until it can write to the bucket, read from it, and write to its "
            "disk; check its credentials, its network and DIR/buffer",
        )

    # ── Between two sessions ──

    async def lost(self) -> None:
        """Handle a lost session: probe the disk, and step down if it fails.  The next session on a
        failing disk would take partitions back from healthy agents, and fail as well.
        """
        if self.unfit or not self._others():
            return
        error = await self._probe.disk()
        if error is not None:
            self._fitness.step_down(self._now_ms())
            self._say_unfit(error)

    async def until_fit(self, stopping: asyncio.Event) -> None:
        """Return when a session may begin, at once if the agent is fit; or at *stopping*."""
        outage = FailureTracker()
        began_ms = self._now_ms()
        while self.unfit:
            wait_s = self._fitness.wait_ms / 1000 * self._rng.uniform(0.5, 1.0)
            if await set_within(stopping, wait_s):
                return
            error = await self._probe.bucket_and_disk()
            now_ms = self._now_ms()
            self._fitness.probed(now_ms, succeeded=error is None)
            if error is not None and outage.failed(error, began_ms, now_ms):
                self._log.warning(
                    "agent_probe_failed",
                    error=error,
                    failures=outage.failures,
                    advice="the agent takes no partitions; retrying",
                )
            elif error is None:
                seconds = round((now_ms - began_ms) / 1000)
                self._log.info("agent_resumed", seconds=seconds)


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for *event*; False: it was not set in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _may_commit(engine: Engine) -> bool:
    """Whether a new look finds that the bucket is the cluster's; a commit would wait for it."""
    ownership = engine.session.ownership
    await ownership.refresh()
    return ownership.holds() and not ownership.is_due()
