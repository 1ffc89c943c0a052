"""Connections: requests are admitted as they are read, answers are sent in request order.

    socket ──▶ FrameReader ──▶ dispatch ──▶ Slot ──▶ answered ──▶ written in turn

A connection reads continuously: it admits a request without waiting for earlier answers.  It stops
reading

* while its client does not read answers;
* while it has too many unanswered requests (`queued_requests`);
* while there is no memory for the rest of its frame;
* while a large Produce is not admitted: later requests are admitted after it;
* while 1 MiB of its batches wait for admission, or there is no room for more waiting batches;
* while the log can buffer no more.

Answers that clients do not take are counted, over all connections: a large answer is made when
there is room for it.  A small answer is always made: while it is not completely taken, the
connection is not read and begins no request.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Final, Protocol, cast

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.network.answer_writer import AnswerWriter
from driftlog_agents.network.answers import Answers
from driftlog_agents.network.connection_host import ConnectionHost
from driftlog_agents.network.frames import FrameReader
from driftlog_agents.network.limits.foreign_protocols import ForeignProtocolError
from driftlog_agents.network.limits.frame_progress import FrameProgress
from driftlog_agents.network.limits.loop_share import Step
from driftlog_agents.network.queued_requests import REQUEST_BYTES, Begin, QueuedRequest
from driftlog_agents.network.slots import LargeSlot, Slot
from driftlog_agents.protocol.errors import (
    SOCKET_REQUEST_BYTES,
    CorruptFrameError,
    FrameTooLargeError,
)
from driftlog_agents.protocol.requests.one_batch import OneBatchReader

_MAX_UNANSWERED: Final = 10_000
"""Unanswered Produce requests of a connection; Kafka admits 1, clients send 5, a raw benchmark
thousands."""

_FEW_UNANSWERED: Final = 16
"""Unanswered requests of a connection while all together have too many.  Clients send 5."""

_MAX_BEHIND: Final = 256
"""Unanswered requests of a connection while one of them is not a Produce: later answers wait for
its answer."""

_EARLY_BYTES: Final = 1024 * 1024
"""Answers to Produce that wait for their turn; from here on, the connection is not read."""

_MOST_WAITING_BYTES: Final = 1024 * 1024
"""Batches that wait for a thread or for their partition; from here on, it is not read."""

_LOOK_EVERY: Final = 16
"""Requests taken between two checks of the clock and of the shared limits: 0.3 ms."""


class Room(Protocol):
    """Where a connection waits with a frame that it has put back."""

    def wait(self, connection: "Connection", /) -> None:
        """Call `take_rest` of *connection* when there is room."""
        ...

    def leave(self, connection: "Connection", /) -> None:
        """*connection* waits no longer."""
        ...


class Connection(asyncio.BufferedProtocol):
    """The connection of one client."""

    def __init__(self, server: ConnectionHost, listener: str, address: str) -> None:
        self._server = server
        self.address = address
        self.client = Client(address)
        self.listener = listener
        """The name of the listener that accepted the connection."""
        self.frames = FrameReader(
            server.socket_request_max_bytes,
            server.shared,
            server.pool,
            server.frame_budget,
            server.requests.budget,
            self.client,
        )
        self.frames.on_memory = self._pause_or_resume
        self._rest: tuple[Iterator[memoryview], int] | None = None
        """Received frames that are not taken yet, and the bytes that they hold."""
        self.share = server.loop_share
        self._again: memoryview | None = None
        """A frame that was put back; it comes before the rest."""
        self._until: Room = self.share
        """Where the connection waits to take it again."""
        self._large: LargeSlot | None = None
        """A large Produce that is not admitted: no later frame is taken."""
        self._held_up = False
        """Whether the limit that stopped reading has been counted."""
        self.source = ConnectionActivity()
        self.answers = Answers(server.answers, self.in_turn, self.client)
        self.writer = AnswerWriter(self, server.requests, self.answers, self.source, server.loop)
        # Called for every request: these references save a call through this object.
        self.queue = self.writer.queue
        self.answered = self.writer.answered
        self._slots = self.writer.slots
        self._progress = FrameProgress()
        self._transport: asyncio.Transport | None = None
        self._file: int | None = None
        self._waiting_bytes = 0
        self._reading = True
        self.client_host = ""
        self.client_id: str | None = None
        self.closed = False
        self.one_batch = OneBatchReader(server.prefixes)
        self.produces = False
        """Whether it has sent a Produce request: then it waits while the log can take no more."""
        self.on_close: set[Callable[[], None]] = set()
        """Functions that are called when the connection closes and needs no answers any more."""

    # ── asyncio ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but are not of that class.
        self._transport = cast(asyncio.Transport, transport)
        self._file = transport.get_extra_info("socket").fileno()
        self.writer.connected(self._transport, self._file)
        peer = transport.get_extra_info("peername")
        self.client_host = _host_and_port(peer[0], peer[1]) if peer else "?"
        self.source.heard_ms = self._server.now_ms()
        self._server.connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.frames.buffer(busy=self.share.has_waiting)

    def buffer_updated(self, nbytes: int) -> None:
        self.source.heard_ms = self._server.now_ms()
        self._take(self.frames.received(nbytes), nbytes)
        self._pause_or_resume()

    def _take_later(self, frames: Iterator[memoryview], size_bytes: int) -> None:
        if self._again is not None:
            self._until.wait(self)
        self._keep_rest(frames, size_bytes)

    def _keep_rest(self, frames: Iterator[memoryview], size_bytes: int) -> None:
        size_bytes = 0 if self.frames.kept_bytes else size_bytes  # counted already
        self._rest = frames, size_bytes
        self._server.requests.budget.note(size_bytes)

    def _take(self, frames: Iterator[memoryview], size_bytes: int) -> None:
        try:
            for number, frame in enumerate(self._with_again(frames)):
                look = number % _LOOK_EVERY == 0
                if look and self.share.used_up:
                    self.put_back(frame)
                else:
                    self._server.dispatch(self, frame)
                if self.closed:
                    break  # frames after the one that closed the connection are not taken
                if self._again is not None or self._large is not None:
                    self._take_later(frames, size_bytes)
                    break
                if (look or self.writer.queued) and (limit := self._enough()) is not None:
                    self.frames.taken()
                    self._keep_rest(frames, size_bytes)
                    self._count_held_up(limit)
                    break
            else:
                self._held_up = False
            if self._rest is None and self._large is None:
                self.frames.taken()
        except ForeignProtocolError as error:
            self._server.refuse_foreign(self, error.protocol)
        except FrameTooLargeError as error:
            self._server.refusals.count(SOCKET_REQUEST_BYTES)
            self.hang_up("frame_refused", str(error))
        except CorruptFrameError as error:
            self.hang_up("frame_refused", str(error))
        except Exception:  # noqa: BLE001
            self.broken()

    def _with_again(self, frames: Iterator[memoryview]) -> Iterator[memoryview]:
        if self._again is None:
            return frames
        again, self._again = self._again, None
        return chain((again,), frames)

    def take_rest(self) -> None:
        """Take the received frames that had to wait."""
        if self._rest is None or self.closed or self._large is not None:
            return
        if self._enough() is None:
            (frames, size_bytes), self._rest = self._rest, None
            self._server.requests.budget.note(-size_bytes)
            self._take(frames, size_bytes)
            self._pause_or_resume()

    def take_turn(self) -> None:
        """Run `take_rest`; an error in it closes only this connection."""
        self.on_loop(self.take_rest)

    def _enough(self) -> str | None:
        """The config that keeps the connection from taking requests now; empty: a limit that is no
        config; None: it takes requests."""
        requests, queued = self._server.requests, self.writer.queued
        unanswered = len(self._slots)
        if self.has_to_wait:
            return ""
        if unanswered >= _FEW_UNANSWERED and requests.too_many:
            requests.held_up[self] = None
            return "driftlog.max.unanswered.requests"
        if not queued:
            return "" if unanswered >= _MAX_UNANSWERED else None
        if requests.full:
            requests.held_up[self] = None
            return requests.full_by
        if queued >= self._server.max_queued:
            return "driftlog.connection.max.queued.requests"
        return "" if unanswered >= _MAX_BEHIND else None

    def _count_held_up(self, limit: str) -> None:
        """Count *limit* once, until the connection is read again."""
        if limit and not self._held_up:
            self._held_up = True
            self._server.refusals.count(limit)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._server.left(self)
        for hear in list(self.on_close):
            self.on_loop(hear)
        self.on_close.clear()
        self.writer.lost()
        self.frames.release()
        self.one_batch.forget()
        if self._large is not None:
            self._large.frame = None
            self._large = None
        self._until.leave(self)
        requests = self._server.requests
        requests.held_up.pop(self, None)
        if self._rest is not None:
            requests.budget.note(-self._rest[1])
            self._rest = None
        requests.look()
        self.answers.close()

    def pause_writing(self) -> None:
        self.writer.paused = True
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self.writer.taken()
        self._pause_or_resume()

    # ── Answers ──

    def turn(self) -> Slot:
        """Add the place of the next answer."""
        slot = Slot(self)
        self.queue(slot)
        return slot

    def ask(
        self,
        frame: memoryview,
        weight: int,
        begin: Begin,
        on_answer: Callable[[], None] | None = None,
    ) -> None:
        """Take a request other than Produce; *begin* is called with its slot when its turn comes.

        Args:
            weight: size of the decoded request, as a multiple of its bytes.
            on_answer: called when the answer is made.
        """
        requests = self._server.requests
        slot = QueuedRequest(self, requests, frame, weight, begin, on_answer)
        more_bytes = REQUEST_BYTES + len(frame)
        if self.frames.kept_bytes:
            requests.budget.pass_on(self.frames, slot)
            slot.take_over(self.frames.kept_bytes)
            self.frames.kept_bytes = 0
            more_bytes = REQUEST_BYTES
        self.writer.queued += 1
        self.queue(slot)
        if self.writer.may_begin(slot):
            slot.start(more_bytes)
        else:
            slot.wait(more_bytes)

    def ask_large(self, frame: memoryview, begin: Callable[[LargeSlot], None]) -> None:
        """Take a large Produce; *begin* is called with its slot when its turn comes.  Its frame is
        counted, and no later frame is taken, until `admitted`."""
        slot = self._large = LargeSlot(self, frame)
        self.queue(slot)
        if self.writer.may_begin(slot):
            begin(slot)
        else:
            slot.begin = partial(begin, slot)

    def admitted(self) -> None:
        """The large Produce is in the log, or refused."""
        self._large = None
        if not self.closed:
            self.frames.taken()
            self.soon(self.take_rest)
            self._pause_or_resume()

    @property
    def has_to_wait(self) -> bool:
        """Whether the client produces, and the log can take no more."""
        return self.produces and self._server.overloaded

    def put_back(self, frame: memoryview, until: Room | None = None) -> None:
        """Keep *frame*, and take it again when *until* (None: this connection's share of the loop)
        has room."""
        self._again = frame
        room = self.share if until is None else until
        if room is not self._until:
            self._until.leave(self)  # a connection waits in one place
            self._until = room

    def written(self) -> None:
        """Called after answers are written: there may be room for more requests."""
        self.take_rest()
        self._pause_or_resume()

    # ── Flow ──

    def batches_wait(self, size_bytes: int) -> None:
        """Count *size_bytes* of batches that wait for admission (negative: they wait no longer)."""
        was, self._waiting_bytes = self._waiting_bytes, self._waiting_bytes + size_bytes
        if was >= _MOST_WAITING_BYTES > self._waiting_bytes:
            self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        wanted = not (
            self.writer.paused
            or self._rest is not None
            or self._large is not None
            or self.answers.unwritten_bytes >= _EARLY_BYTES
            or self.frames.waiting
            or self._waiting_bytes >= _MOST_WAITING_BYTES
            or self.has_to_wait
        )
        if wanted != self._reading and not self.closed and self._transport is not None:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def reconsider(self) -> None:
        """A shared limit has changed: read the socket again, or stop reading it."""
        if self._rest is not None:
            self.soon(self.take_rest)
        self._pause_or_resume()

    def look_for_progress(self, now_ms: float, *, untrusted_progress: bool) -> None:
        """Others wait for memory: close this connection if it holds some without progress."""
        frames = self.frames
        if frames.waiting:
            accused = frames.has_memory and not frames.trusted and not untrusted_progress
        else:
            # Accused: a client that takes no answers, and a Produce that waits behind a Fetch.
            # Not accused: a connection that is not read, and a Produce that waits only for commits.
            behind = self._large is not None and self.writer.queued > 0
            accused = frames.buffered_bytes > 0 and (self._reading or self.writer.paused or behind)
        if not accused:
            self._progress.forget()
            return
        since_ms = self._progress.stalled_since_ms(now_ms, frames.completed, frames.arrived_bytes)
        if now_ms > since_ms and now_ms - since_ms >= self._server.stalled_ms:
            self._hang_up_stalled()

    def _hang_up_stalled(self) -> None:
        arrived, patience_s = self.frames.arrived_bytes, self._server.stalled_ms / 1000
        if self._large is not None:
            self.hang_up(
                "frame_stalled",
                f"a Produce of {self.frames.kept_bytes} bytes has waited {patience_s:g} s behind "
                "a request that is not answered yet, while others wait for the memory: produce on "
                "a connection of its own",
            )
        elif self.frames.waiting:
            self.hang_up(
                "frame_given_up",
                f"{arrived} bytes of a request came, and there was no memory for the rest in "
                f"{patience_s:g} s: too many clients begin large requests and do not end them",
            )
        else:
            self.hang_up(
                "frame_stalled",
                f"{arrived} bytes of a request came, and hardly more in {patience_s:g} s, while "
                "others wait for the memory: the client has died, or its network is slow",
            )

    def forget_progress(self) -> None:
        """No connection waits any more: the next check is the first."""
        self._progress.forget()

    @property
    def unread_file(self) -> int | None:
        """The file descriptor while it waits for answers or memory and is not read; else None:
        what a producer sent before it left is read when the log can take more."""
        if self._reading or self.closed:
            return None
        return self._file if self._waits_for_answers or self.frames.waiting else None

    @property
    def missing_bytes(self) -> int:
        """Missing bytes of a frame whose wait for memory stops reading; 0: there is none."""
        return 0 if self._waits_for_answers else self.frames.missing_bytes

    @property
    def _waits_for_answers(self) -> bool:
        return bool(self.writer.queued) or self.writer.paused or self._large is not None

    @property
    def got(self) -> tuple[int, int]:
        """Changes when the client receives something: answers, and bytes on the way."""
        assert self._transport is not None
        return self.source.answers, self._transport.get_write_buffer_size()

    @property
    def frames_trusted(self) -> bool:
        """Whether the client has sent a large frame completely."""
        return self.frames.trusted

    @property
    def request_bytes(self) -> int:
        """Bytes that its requests hold."""
        return self.writer.request_bytes

    def takes_nothing(self, now_ms: float, hurry: int) -> bool:
        """Others wait for room for answers: whether this client does not take its own, as far as
        one part of *hurry* of the time shows it."""
        stalled_ms, untaken = self._server.stalled_ms, self.writer.untaken_bytes
        return self.answers.stalled(now_ms, stalled_ms, untaken, hurry)

    @property
    def idle_ms(self) -> float:
        """Time since bytes were received; 0 while an answer is owed."""
        return 0.0 if self._slots else self._server.now_ms() - self.source.heard_ms

    def hang_up(self, event: str, reason: str) -> None:
        """Close, and log *event* with *reason* once."""
        if not self.closed:
            self._server.log.warning(
                event, client=self.client_host, client_id=self.client_id, reason=reason
            )
            self.close()

    def soon(self, step: Callable[[], None]) -> None:
        """Run *step* in the next iteration of the loop."""
        self._server.loop.call_soon(self.on_loop, step)

    def in_turn(self, step: Callable[[], None]) -> None:
        """Run *step* in this connection's turn: many connections may have one at once."""
        self.share.wait(Step(self, step))

    def on_loop(self, step: Callable[[], None]) -> None:
        """Run *step* for the event loop or the log; a bug in it closes only this connection."""
        try:
            step()
        except CorruptFrameError as error:
            self.hang_up("frame_refused", str(error))
        except Exception:  # noqa: BLE001
            self.broken()

    def broken(self) -> None:
        """Log a bug in connection code and close, so that the agent and its partitions continue."""
        self._server.log.exception("connection_bug", client=self.client_host)
        self.close()

    def finish(self) -> None:
        """Send the answers that are ready, then close."""
        self.writer.flush()
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """Close now, without sending the answers that are owed."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


def _host_and_port(host: str, port: int) -> str:
    """As in a URL: an IPv6 address has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
