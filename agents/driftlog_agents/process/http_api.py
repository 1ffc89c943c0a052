"""The agent's HTTP port: for Prometheus, for supervisors, and for `driftlog segments seal`.

    GET  /metrics                Prometheus text
    GET  /healthz                200 while the event loop runs: a supervisor restarts the process
                                 when no answer comes
    GET  /readyz                 200 while it serves; else 503 and each reason (`health/readiness`);
                                 with ?json as JSON, with codes
    POST /topics/{topic}/seal    seal everything committed now; JSON: sealed end by partition;
                                 429 when a topic is sealed too often
    GET  /partitions/offline     JSON: partitions that this agent cannot serve, and why
    GET  /topics/{topic}/{partition}/loss
                                 JSON: what the partition has lost for good; changes nothing
    POST /topics/{topic}/{partition}/loss
                                 its body: the answer to GET.  Continue without what is lost
    POST /segments               write the segments of another agent's partition (`segment_http`)
    POST /imports                begin the bulk import of a topic; its body: {"topic": …,
                                 "partitions": n, "configs": {…}}; JSON: what the importer needs
    POST /imports/{id}/renew     the importer lives
    POST /imports/{id}/publish   its body: {"topic": …, "ends": [n, …]}; the topic exists
    POST /imports/{id}/abandon   the importer gives up; what it wrote is deleted

A POST needs the header ``X-Driftlog`` with any value (`http_guard`).

Shell.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from uuid import UUID

from aiohttp import web

from driftlog_agents.foundation.loop_slices import time_to_work
from driftlog_agents.health.readiness import AgentFacts, Readiness, SessionFacts
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.recovery.lost_partition import LedElsewhereError, NotLostError
from driftlog_agents.process.composition.agent import now_ms
from driftlog_agents.process.http_bodies import MOST_BYTES, error_answer, json_object
from driftlog_agents.process.http_errors import LOGGER, ServerErrors, expected
from driftlog_agents.process.http_guard import GUARD, HttpGuard, HttpPatience
from driftlog_agents.process.metrics.collect import Scrapes
from driftlog_agents.process.metrics.observed import Observed
from driftlog_agents.process.partition_counts import Counts, PartitionCounts
from driftlog_agents.process.segment_http import SegmentHttp
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.minute_quota import SEALS, MinuteQuota
from driftlog_agents.topics.validation import NewTopic
from driftlog_metadata.schema.model import Role, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, FencedError, StoreError

_SEAL_DEADLINE_S: Final = 600

_IMPORT_S: Final = 120.0
"""Of one request of an importer: a publication reads the manifest of each partition."""

_IMPORTS_PER_MINUTE: Final = 20
"""That begin at one agent: one that is given up leaves a key and two objects until the grace."""

_NO_ID: Final = str(UUID(int=0))
_REFUSED: Final = {
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.UNKNOWN_TOPIC_ID: 404,
    ErrorCode.NOT_CONTROLLER: 503,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 429,
}
"""Statuses of refused imports; of all others 400."""

_BETWEEN: Final = "the agent is between two sessions: try again"

_RETRY_S: Final = 0.3

_PARTITION_DIGITS: Final = 10
"""Of 2147483647; Python refuses to read a number of thousands."""

_NAME: Final = 250
"""Of a topic's name: what is cut off is too long, and is not repeated in the answer."""

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus 3 refuses what it does not know."""

_ImportChange = Callable[[dict[str, Any], UUID, Engine], Awaitable[dict[str, Any]]]
"""Makes a step of an import: the body, the topic's id and the engine; returns the answer."""

_PATIENCE: Final = HttpPatience()

_FINISH_S: Final = 1.0
"""How long `stop` waits for answers; a seal may wait for a bucket that is unavailable."""


class HttpApi:
    """The HTTP port of one agent.

    Args:
        names: hosts by which the agent is advertised.
    """

    def __init__(
        self,
        observed: Observed,
        names: Sequence[str] = (),
        patience: HttpPatience = _PATIENCE,
    ) -> None:
        self._observed = observed
        self._scrapes = Scrapes(observed)
        self._errors = ServerErrors(now_ms)
        self._agent = observed.agent
        self._names = names
        self._patience = patience
        self._readiness = Readiness()
        self._counts = PartitionCounts()
        self._runner: web.AppRunner | None = None
        self._guard: HttpGuard | None = None
        settings = self._agent.settings.broker
        self._segments = SegmentHttp(
            self._serving, settings.socket_request_max_bytes, lambda: self._agent.sealing.hangs
        )
        limits = settings.limits
        self._seals = MinuteQuota(limits.driftlog_max_topic_seals_per_minute, now_ms)
        self._imports = MinuteQuota(_IMPORTS_PER_MINUTE, now_ms)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on *sockets*, which are bound."""
        settings = self._agent.settings
        guard = self._guard = HttpGuard(
            settings.broker.limits, self._names, self._agent.refusals, self._patience
        )
        app = web.Application(middlewares=[guard.middleware], client_max_size=MOST_BYTES)
        app[GUARD] = guard
        routes = [
            web.get("/metrics", self._metrics),
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.post("/topics/{topic}/seal", self._seal),
            web.get("/partitions/offline", self._offline),
            web.get("/topics/{topic}/{partition:[0-9]+}/loss", self._examine_loss),
            web.post("/topics/{topic}/{partition:[0-9]+}/loss", self._accept_loss),
            self._segments.route(),
            web.post("/imports", self._begin_import),
            web.post("/imports/{topic_id}/renew", self._renew_import),
            web.post("/imports/{topic_id}/publish", self._publish_import),
            web.post("/imports/{topic_id}/abandon", self._abandon_import),
        ]
        app.add_routes(
            web.RouteDef(
                each.method, each.path, each.handler, {"expect_handler": expected, **each.kwargs}
            )
            for each in routes
        )
        logging.getLogger(LOGGER).addFilter(self._errors)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=_FINISH_S, auto_decompress=False
        )
        await self._runner.setup()
        assert self._runner.server is not None
        guard.start(self._runner.server, sockets)

    async def stop(self) -> None:
        """Close the port."""
        if self._guard is not None:
            self._guard.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        logging.getLogger(LOGGER).removeFilter(self._errors)

    async def _metrics(self, _: web.Request) -> web.Response:
        if not self._agent.ready.is_set():
            return web.Response(status=503, text="starting\n")
        text = await self._scrapes.text()
        return web.Response(body=text, headers={"Content-Type": _METRICS_TYPE})

    async def _healthz(self, request: web.Request) -> web.Response:
        if "json" not in request.query:
            return web.Response(text="ok\n")
        stall_s = round(self._observed.loop_watch.longest_stall_s, 3)
        return web.json_response({"alive": True, "longest_stall_seconds": stall_s})

    async def _readyz(self, request: web.Request) -> web.Response:
        facts = await self._facts()
        reasons = self._readiness.judge(facts)
        status = 503 if reasons else 200
        if "json" not in request.query:
            lines = [reason.text for reason in reasons] or ["ok"]
            return web.Response(status=status, text="".join(f"{line}\n" for line in lines))
        session = facts.session
        answer: dict[str, Any] = {
            "ready": not reasons,
            "reasons": [{"code": reason.code, "text": reason.text} for reason in reasons],
            "session": None if session is None else session.session_id,
        }
        if session is not None:
            counts = {"led": session.led, "loading": session.loading, "offline": session.offline}
            answer["partitions"] = counts
        return web.json_response(answer, status=status)

    async def _facts(self) -> AgentFacts:
        agent = self._agent
        engine = self._serving()
        counts = None if engine is None else await self._counts.of(engine)
        if not agent.ready.is_set():
            return AgentFacts(started=False)
        evidence = agent.store_watch.evidence
        if engine is not agent.broker.engine:
            engine = None  # another session has begun meanwhile
        return AgentFacts(
            started=True,
            stopping=agent.stopping,
            distrusted="" if evidence is None else evidence.reason,
            unfit=agent.fitness.unfit,
            hangs=agent.sealing.hangs and Role.SERVE not in agent.settings.roles,
            session=None if engine is None or counts is None else _session_facts(engine, counts),
        )

    def _serving(self) -> Engine | None:
        """The present session's engine; None: the agent starts, or is between two."""
        return self._agent.broker.engine if self._agent.ready.is_set() else None

    async def _seal(self, request: web.Request) -> web.Response:
        topic = request.match_info["topic"]
        engine = self._serving()
        if engine is None:
            return error_answer(503, _BETWEEN)
        entry = engine.topics.get(topic)
        if entry is None:
            return error_answer(
                404, f"topic {topic!r} does not exist: driftlog topics list lists the topics"
            )
        wait_s = self._seals.wait_s(topic)
        if wait_s:
            self._agent.refusals.count(SEALS)
            return error_answer(
                429,
                f"{topic} was sealed {self._seals.most} times in a minute ({SEALS}): try "
                f"again in {wait_s} s.  The agent seals committed records by itself, too "
                "(segment.ms, segment.bytes of the topic)",
                {"Retry-After": str(wait_s)},
            )
        sealed: dict[str, int] = {}
        try:
            async with asyncio.timeout(_SEAL_DEADLINE_S):
                for log in [log for log in entry.logs if log is not None]:
                    sealed[str(log.partition)] = await self._seal_one(log)
        except (StoreError, CorruptError, TimeoutError) as error:
            return error_answer(503, f"{topic} is not sealed: {error or 'it took too long'}")
        return web.json_response({"topic": topic, "sealed_end": sealed})

    async def _seal_one(self, log: PartitionLog) -> int:
        """Seal up to the present high watermark, in as many segments as it takes."""
        wanted = log.high_watermark
        while log.sealed_end < wanted:
            engine = self._agent.broker.engine
            if engine is None:
                raise FencedError("the agent's session ended")
            before = log.sealed_end
            end = engine.sealer.next_end(log, wanted)
            await engine.sealer.seal(log, end)
            if log.sealed_end == before:
                await asyncio.sleep(_RETRY_S)
        return log.sealed_end

    # ── Partitions that are offline ──

    async def _offline(self, _: web.Request) -> web.Response:
        engine = self._serving()
        if engine is None:
            return error_answer(503, _BETWEEN)
        await time_to_work()
        topics = engine.topics_by_id
        found = [
            {"topic": topics[tp.topic_id].topic.name, "partition": tp.partition, "reason": why}
            for tp, why in engine.offline().items()
            if tp.topic_id in topics
        ]
        return web.json_response({"offline": found})

    async def _examine_loss(self, request: web.Request) -> web.Response:
        return await self._of_loss(request, None)

    async def _accept_loss(self, request: web.Request) -> web.Response:
        shown = await json_object(request)
        return shown if isinstance(shown, web.Response) else await self._of_loss(request, shown)

    async def _of_loss(self, request: web.Request, shown: dict[str, Any] | None) -> web.Response:
        engine = self._serving()
        if engine is None:
            return error_answer(503, _BETWEEN)
        topic, digits = request.match_info["topic"], request.match_info["partition"]
        if len(digits) > _PARTITION_DIGITS:
            return error_answer(400, "the number of a partition is below 2147483648")
        number = int(digits)
        entry = engine.topics.get(topic)
        if entry is None or number >= entry.topic.partitions:
            return error_answer(404, f"partition {topic}-{number} does not exist")
        tp = TopicPartition(entry.topic.topic_id, number)
        if engine.find(tp) is None and not engine.assignments.is_tried_here(tp):
            return error_answer(
                421, f"{topic}-{number} is placed on another agent: send the request to that agent"
            )
        try:
            async with asyncio.timeout(_SEAL_DEADLINE_S):
                if shown is None:
                    return web.json_response((await engine.losses.examine(tp)).as_json())
                loss = await engine.losses.accept(tp, shown, self._agent.broker.wall_ms())
        except LedElsewhereError as error:
            return error_answer(421, f"{topic}-{number}: {error}")
        except NotLostError as error:
            return error_answer(409, f"{topic}-{number}: {error}")
        except TimeoutError:
            goes_on = "" if shown is None else "; the agent continues: check again later"
            return error_answer(503, f"{topic}-{number}: the request takes long{goes_on}")
        except (StoreError, CorruptError) as error:
            return error_answer(503, f"{topic}-{number}: {error}")
        return web.json_response({"goes_on_at": loss.goes_on_at, "audit": loss.key})

    # ── Bulk imports ──

    async def _begin_import(self, request: web.Request) -> web.Response:
        async def begin(body: dict[str, Any], _: UUID, engine: Engine) -> dict[str, Any]:
            match body:
                case {"topic": str(name), "partitions": partitions, "configs": dict(configs)} if (
                    type(partitions) is int
                ):
                    pass
                case _:
                    raise ValueError
            new = NewTopic(
                name=name[:_NAME],
                partitions=partitions,
                configs={str(key): str(value) for key, value in configs.items()},
            )
            if wait_s := self._imports.wait_s(""):
                raise RefusedError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"{_IMPORTS_PER_MINUTE} imports began at this agent within a minute: try again "
                    f"in {wait_s} s",
                )
            topics = self._agent.broker.topics
            topic = await topics.begin_import(new, client=_client(request), timeout_s=_IMPORT_S)
            author = engine.session.author
            return {
                "topic_id": str(topic.topic_id),
                "partitions": topic.partitions,
                "cluster_id": author.cluster_id,
                "format_level": author.format_version,
                "grace_ms": engine.settings.seal.grace.ms,
            }

        return await self._import(request, begin)

    async def _renew_import(self, request: web.Request) -> web.Response:
        async def renew(_: dict[str, Any], topic_id: UUID, engine: Engine) -> dict[str, Any]:
            await self._agent.broker.topics.imports.renew(engine, topic_id)
            return {}

        return await self._import(request, renew)

    async def _publish_import(self, request: web.Request) -> web.Response:
        async def publish(body: dict[str, Any], topic_id: UUID, _: Engine) -> dict[str, Any]:
            match body:
                case {"topic": str(name), "ends": [*ends]} if all(type(n) is int for n in ends):
                    pass
                case _:
                    raise ValueError
            topics = self._agent.broker.topics
            await topics.publish_import(
                name[:_NAME], topic_id, ends, client=_client(request), timeout_s=_IMPORT_S
            )
            return {}

        return await self._import(request, publish)

    async def _abandon_import(self, request: web.Request) -> web.Response:
        async def abandon(_: dict[str, Any], topic_id: UUID, engine: Engine) -> dict[str, Any]:
            await self._agent.broker.topics.imports.abandon(engine, topic_id, _client(request))
            return {}

        return await self._import(request, abandon)

    async def _import(self, request: web.Request, change: _ImportChange) -> web.Response:
        body = await json_object(request)
        if isinstance(body, web.Response):
            return body
        engine = self._serving()
        if engine is None:
            return error_answer(503, _BETWEEN)
        try:
            topic_id = UUID(request.match_info.get("topic_id", _NO_ID))
            async with asyncio.timeout(_IMPORT_S):
                answer = await change(body, topic_id, engine)
        except ValueError:
            return error_answer(400, "the request is none of this release: upgrade the importer")
        except RefusedError as error:
            status = _REFUSED.get(error.code, 400)
            return error_answer(status, str(error))
        except (StoreError, CorruptError, TimeoutError) as error:
            return error_answer(503, f"{error or 'it took too long'}: try again")
        return web.json_response(answer)


def _client(request: web.Request) -> str:
    return request.remote or "?"


def _session_facts(engine: Engine, counts: Counts) -> SessionFacts:
    at_ms, requests, flushes = engine.ports.now_ms(), engine.health.requests, engine.health.flushes
    return SessionFacts(
        session_id=engine.session.session_id,
        serves=engine.ready.is_set() and engine.session.alive,
        metadata_failing_ms=requests.lasted_ms(at_ms),
        metadata_error=requests.error,
        commits_failing_ms=flushes.lasted_ms(at_ms),
        commits_error=flushes.error,
        led=counts.led,
        loading=counts.loading,
        offline=counts.offline,
    )
