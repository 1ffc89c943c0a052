"""Connections: requests are admitted as they are read, answers go out in request order.

    socket ──▶ FrameReader ──▶ dispatch ──▶ Slot ──▶ answered ──▶ written in turn

A connection is read continuously and does not wait for one answer before it admits the
next request.  It is paused while its client does not read answers, while it has too many
unanswered requests, while there is no memory for the rest of its frame, and while the log can
buffer no more.

Shell.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import structlog

from driftlog_agents.log.flush import Source
from driftlog_agents.network.frame_budget import FrameBudget
from driftlog_agents.network.frames import FrameReader
from driftlog_agents.protocol.errors import CorruptFrameError
from driftlog_agents.protocol.one_batch import OneBatchReader
from driftlog_tiering.buffer_pool import BufferPool

Buffer = bytes | bytearray | memoryview

_SHARED_BYTES: Final = 256 * 1024
_MAX_UNANSWERED: Final = 10_000
"""Requests of one connection; Kafka admits 1, clients send 5, a raw benchmark thousands."""

_WRITE_HIGH_BYTES: Final = 4 * 1024 * 1024
"""Answers waiting for a client that does not read: then it is not read either."""

_JOIN_BYTES: Final = 16 * 1024
"""Buffers up to this size are joined into one write: cheaper than an iovec each."""


class Slot:
    """The turn of one request on its connection."""

    __slots__ = ("answer", "begin", "connection")

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.begin: Callable[[], None] | None = None
        """What starts the request when its turn comes; None: it has started."""
        self.answer: Sequence[Buffer] | None = None

    def respond(self, answer: Sequence[Buffer]) -> None:
        """Answer with whole frames; empty takes the turn and writes nothing (acks=0)."""
        assert self.answer is None, "answered twice"
        self.answer = answer
        self.connection.answered()


_POOL_BYTES: Final = 128 * 1024 * 1024
"""The log keeps 96 MiB of frames in memory (`MemorySettings`), and some are on their way."""

_INCOMPLETE_BYTES: Final = 256 * 1024 * 1024
"""What frames that are not complete may hold: 256 producers in the middle of a request of 1 MiB."""

_LOOK_S: Final = 0.5
"""How often stalled frames are looked for, while frames wait for memory."""

_SLOWEST_BYTES: Final = 256 * 1024
"""Who brings less of a frame in `stalled_ms` is stalled."""

_FINISH_S: Final = 1.0
"""How long leaving waits for clients to take their last answers."""

Dispatch = Callable[["Connection", memoryview], None]


class Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, server: "Server", listener: str) -> None:
        self._server = server
        self.listener = listener
        """The name of the listener that it came in through."""
        self._frames = FrameReader(
            server.socket_request_max_bytes, server.shared, server.pool, server.frame_budget
        )
        self._frames.on_memory = self._pause_or_resume
        self._progress: tuple[float, int, int] | None = None
        """When it was last seen to bring something: time, frames, bytes of the incomplete one."""
        self._slots: deque[Slot] = deque()
        self._transport: asyncio.Transport | None = None
        self._flush_scheduled = False
        self._write_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = True
        self.source = Source()
        self.client_host = ""
        self.client_id: str | None = None
        self.closed = False
        self.one_batch = OneBatchReader()
        self.produces = False
        """It has sent a Produce request: it waits while the log can take no more."""
        self.chain: deque[Callable[[], Any]] = deque()
        """Requests that run one after the other; the dispatcher's."""
        self.chain_running = False
        self.on_close: set[Callable[[], None]] = set()
        """Who must hear that nobody waits for the answer any more."""

    # ── asyncio ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods and not the class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        peer = transport.get_extra_info("peername")
        self.client_host = f"{peer[0]}:{peer[1]}" if peer else "?"
        self.source.heard_ms = self._server.now_ms()
        if not self._server.admit(self):
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.source.heard_ms = self._server.now_ms()
        try:
            for frame in self._frames.received(nbytes):
                self._server.dispatch(self, frame)
                if self.closed:
                    break  # what came behind what it was closed for is not taken
        except CorruptFrameError as error:
            self.hang_up("frame_refused", str(error))
        except Exception:  # noqa: BLE001
            self.broken()
        self._pause_or_resume()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._writable.set()
        self._server.left(self)
        for hear in list(self.on_close):
            self.on_loop(hear)
        self.on_close.clear()
        self._slots.clear()
        self.chain.clear()
        self._frames.release()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._writable.clear()
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._writable.set()
        self.answered()
        self._pause_or_resume()

    async def writable(self) -> None:
        """Return, at once or later, when the client takes answers or is gone."""
        await self._writable.wait()

    # ── Answers ──

    def turn(self) -> Slot:
        """The place of the next answer."""
        slot = Slot(self)
        self.queue(slot)
        return slot

    def queue(self, slot: Slot) -> None:
        """Give *slot* the next turn."""
        self._slots.append(slot)
        self.source.requests += 1

    def in_turn(self, slot: Slot, begin: Callable[[], None]) -> None:
        """Call *begin* when all before *slot* is answered and the client takes answers.

        For requests with large answers: pipelined ones must not all be made at once.
        """
        if self._slots[0] is slot and not self._write_paused:
            begin()
        else:
            slot.begin = begin

    def _begin_first(self) -> None:
        if self._slots and not self._write_paused and not self.closed:
            begin, self._slots[0].begin = self._slots[0].begin, None
            if begin is not None:
                begin()

    def answered(self) -> None:
        """Some slot has its answer: write what is in turn, once this turn of the loop."""
        if not self._flush_scheduled and not self.closed:
            self._flush_scheduled = True
            self._server.loop.call_soon(self.on_loop, self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.closed or self._transport is None:
            return
        slots = self._slots
        ready: list[Buffer] = []
        small: list[Buffer] = []
        while slots and slots[0].answer is not None:
            answer = slots.popleft().answer
            self.source.answers += 1
            assert answer is not None
            for buffer in answer:
                if len(buffer) <= _JOIN_BYTES:
                    small.append(buffer)
                else:
                    if small:
                        ready.append(b"".join(small))
                        small = []
                    ready.append(buffer)
        if small:
            ready.append(b"".join(small))
        if len(ready) == 1:
            self._transport.write(ready[0])
        elif ready:
            self._transport.writelines(ready)
        self._begin_first()
        self._pause_or_resume()

    # ── Flow ──

    def _pause_or_resume(self) -> None:
        wanted = not (
            self._write_paused
            or len(self._slots) >= _MAX_UNANSWERED
            or self._frames.waiting
            or (self.produces and self._server.overloaded)
        )
        if wanted != self._reading and not self.closed and self._transport is not None:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def reconsider(self) -> None:
        """The log can buffer again, or no more."""
        self._pause_or_resume()

    def look_for_progress(self, now_ms: float, *, strangers_progress: bool) -> None:
        """Others wait for memory: hang up if this holds some for nothing."""
        frames = self._frames
        if frames.waiting:
            accused = frames.has_memory and not frames.trusted and not strangers_progress
        else:
            # Whom we do not read cannot bring anything; who takes no answers could.
            accused = frames.buffered_bytes > 0 and (self._reading or self._write_paused)
        if not accused:
            self._progress = None
            return
        seen, completed, arrived_bytes = self._progress or (now_ms, -1, 0)
        if completed != frames.completed or frames.arrived_bytes - arrived_bytes >= _SLOWEST_BYTES:
            self._progress = now_ms, frames.completed, frames.arrived_bytes
        elif now_ms - seen >= self._server.stalled_ms:
            self._hang_up_stalled()

    def _hang_up_stalled(self) -> None:
        arrived, patience_s = self._frames.arrived_bytes, self._server.stalled_ms / 1000
        if self._frames.waiting:
            self.hang_up(
                "frame_given_up",
                f"{arrived} bytes of a request came, and there was no memory for the rest in "
                f"{patience_s:g} s: too many clients begin large requests and do not end them",
            )
        else:
            self.hang_up(
                "frame_stalled",
                f"{arrived} bytes of a request came, and hardly more in {patience_s:g} s, while "
                "others wait for the memory: has this client died, or is its network slow?",
            )

    def forget_progress(self) -> None:
        """Nobody waits any more: the next look is the first."""
        self._progress = None

    @property
    def idle_ms(self) -> float:
        """Since something was received, while nothing is owed."""
        return 0.0 if self._slots else self._server.now_ms() - self.source.heard_ms

    def hang_up(self, event: str, reason: str) -> None:
        """Close, and say so once."""
        if not self.closed:
            self._server.log.warning(
                event, client=self.client_host, client_id=self.client_id, reason=reason
            )
            self.close()

    def on_loop(self, step: Callable[[], None]) -> None:
        """Do *step*, which the event loop or the log calls: a bug in it costs this connection."""
        try:
            step()
        except Exception:  # noqa: BLE001
            self.broken()

    def broken(self) -> None:
        """A bug in connection code must not take the agent, and all its partitions, along."""
        self._server.log.exception("connection_bug", client=self.client_host)
        self.close()

    def finish(self) -> None:
        """Close once what was answered is sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """Close now; answers that are owed are not sent."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


def _nobody(_: Connection, __: memoryview) -> None:
    raise AssertionError("a server that was started before it had a dispatcher")


class Server:
    """Listens, and owns every connection."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], float],
        socket_request_max_bytes: int,
        max_connections: int,
        connections_max_idle_ms: float,
    ) -> None:
        self.dispatch: Dispatch = _nobody
        """Set before `start`."""
        self.now_ms = now_ms
        self.socket_request_max_bytes = socket_request_max_bytes
        self.shared = memoryview(bytearray(_SHARED_BYTES))
        self.pool = BufferPool(_POOL_BYTES)
        self.frame_budget = FrameBudget(_INCOMPLETE_BYTES, self._pressed)
        self._looking = False
        self._welcomed = 0
        self.stalled_ms = 5_000.0
        """How long an incomplete frame may stand still while others wait for its memory."""
        self.log = structlog.get_logger()
        self.loop = asyncio.get_running_loop()
        self.pressures: set[str] = set()
        """Why producers are kept waiting."""
        self.connections: set[Connection] = set()
        self._max_connections = max_connections
        self._idle_ms = connections_max_idle_ms
        self._listeners: dict[str, list[asyncio.Server]] = {}
        """By name."""

    async def use(self, listener: str, sockets: Sequence[socket.socket]) -> None:
        """Take sockets that are bound.  Nobody is accepted before `start`."""
        for bound in sockets:
            server = await self.loop.create_server(
                lambda: Connection(self, listener), sock=bound, backlog=1024, start_serving=False
            )
            self._listeners.setdefault(listener, []).append(server)

    async def start(self, listener: str) -> None:
        """Accept at *listener*; harmless when that is done already.

        Raises:
            OSError: somebody else, who was bound as well, was faster.
        """
        for server in self._listeners[listener]:
            await server.start_serving()

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; False: there are too many."""
        if len(self.connections) >= self._max_connections:
            self.log.warning(
                "connection_refused",
                client=connection.client_host,
                reason=f"{self._max_connections} connections are open",
                advice="raise the limit of open files (ulimit -n), or start more agents",
            )
            return False
        self.connections.add(connection)
        return True

    def left(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)

    @property
    def overloaded(self) -> bool:
        """Whether producers are kept waiting."""
        return bool(self.pressures)

    def set_pressure(self, reason: str, there: bool) -> None:
        """Keep producers waiting, for one more reason or one less; consumers are read on."""
        was = self.overloaded
        if there:
            self.pressures.add(reason)
        else:
            self.pressures.discard(reason)
        if was != self.overloaded:
            for connection in list(self.connections):
                connection.reconsider()

    def _pressed(self) -> None:
        """Frames wait for memory: look for those that hold it for nothing until none waits."""
        if not self._looking:
            self._looking = True
            self.loop.call_later(_LOOK_S, self._look_for_stalled)

    def _look_for_stalled(self) -> None:
        now_ms = self.now_ms()
        pressed, welcomed = self.frame_budget.pressed, self.frame_budget.welcomed
        strangers_progress, self._welcomed = welcomed != self._welcomed, welcomed
        for connection in list(self.connections):
            if pressed:
                connection.look_for_progress(now_ms, strangers_progress=strangers_progress)
            else:
                connection.forget_progress()
        self._looking = False
        if pressed:
            self._pressed()

    async def close_idle(self) -> None:
        """Close connections that were silent too long, for ever."""
        while True:
            await asyncio.sleep(min(30.0, self._idle_ms / 4000))
            for connection in list(self.connections):
                if connection.idle_ms > self._idle_ms:
                    connection.close()

    def stop_listening(self) -> None:
        """Accept no more."""
        for servers in self._listeners.values():
            for server in servers:
                server.close()

    async def finish(self) -> None:
        """Send the answers that are there, and close every connection."""
        await asyncio.sleep(0)
        for connection in list(self.connections):
            connection.finish()
        deadline = self.loop.time() + _FINISH_S
        while self.connections and self.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # at the very end, for a second
        for connection in list(self.connections):
            connection.close()
