"""One watch on etcd: every change once and in order, across lost connections.

    stream ──▶ response, response, … ──▶ whole revisions, one list each ──▶ anext()
       ╳ lost, left, or told that its member has no leader
       └▶ another stream, from the revision after the last one that was whole

A member that is behind a revision already seen may be slow: a linearizable read decides.  If its
answer is behind as well, the store went back (restored, or made anew): etcd itself waits in
silence for revisions that have been.

Events alone say where to continue: etcd's progress notifications may overtake them (3.4), so
the watch ignores them.  A revision that etcd cut into fragments counts when its last fragment
has come.

A stream is read only while a caller waits, and by a task of the watch's own, so that a
cancelled ``anext()`` does not cancel the read; gRPC's flow control holds back etcd meanwhile.

Adapter.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import Any, Final, Self

import grpc

from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.etcd import etcd_messages as messages
from driftlog_metadata.stores.etcd.etcd_client import (
    Endpoint,
    EtcdClient,
    Metadata,
    Repeat,
    first_answer,
    was_asked_to_stop,
)
from driftlog_metadata.stores.etcd.etcd_errors import EtcdRefusedError
from driftlog_metadata.stores.etcd.etcd_messages import key_value, prefix_end
from driftlog_metadata.stores.limits import check_key, check_start_revision
from driftlog_metadata.stores.store import (
    CompactedError,
    DeleteEvent,
    PutEvent,
    StoreWentBackError,
    WatchEvent,
)

_FIRST_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 1.0
"""Between attempts to open a stream; less, at random, so that agents do not reconnect together."""

_CLOSE_S: Final = 2.0
"""How long `aclose` waits for the reading task to stop: as long as a member may take."""


class EtcdWatch:
    """A `driftlog_metadata.stores.store.Watch` for one reader: one ``anext()`` at a time.

    While etcd is unreachable the watch waits, without an error: other calls report it.  A refusal
    of etcd's (a role without the prefix) is raised, and the next ``anext()`` tries again.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        start_revision: int,
        forget: Callable[["EtcdWatch"], None],
        close_s: float = _CLOSE_S,
    ) -> None:
        check_key(prefix)
        check_start_revision(start_revision)
        self._client = client
        self._prefix = prefix
        self._next_revision = start_revision
        self._forget = forget
        self._close_s = close_s
        self._stream: Any = None
        self._ready: deque[list[WatchEvent]] = deque()
        self._fragments: list[Any] = []
        self._receiving: asyncio.Task[None] | None = None
        self._has_reader = False
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[WatchEvent]:
        """Wait for the next revision that touches the prefix.

        Raises:
            CompactedError: its history is gone; the watch stays where it is.
            StoreWentBackError: see `MetadataStore.watch`; the watch stays where it is.
            UnavailableError: etcd refuses it; the message says what to do.
        """
        assert not self._has_reader, "two readers of one watch"
        self._has_reader = True
        try:
            while not self._closed and not self._ready:
                # The task belongs to this watch: only `aclose` ends it.
                self._receiving = self._receiving or asyncio.create_task(self._receive())
                receiving = self._receiving
                await asyncio.wait([receiving])
                if self._receiving is receiving:
                    self._receiving = None
                    receiving.result()
            if self._closed:
                raise StopAsyncIteration
            return self._ready.popleft()
        finally:
            self._has_reader = False

    async def aclose(self) -> None:
        """See `driftlog_metadata.stores.store.Watch.aclose`."""
        self._closed = True
        self._forget(self)
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.cancel()
            receiving.add_done_callback(self._received)
            # Cancelled and not awaited further: the task ends with the connection at the latest.
            await asyncio.wait([receiving], timeout=self._close_s)
        self._drop_stream()

    def _received(self, receiving: asyncio.Task[None]) -> None:
        """The reading task has ended, perhaps long after the end of the watch."""
        self._drop_stream()
        if not receiving.cancelled():
            receiving.exception()  # no caller waits for it any more

    # ── Receiving, in a task of its own ──

    async def _receive(self) -> None:
        """Return when `_ready` has something, or the watch is closed."""
        backoff_s = _FIRST_BACKOFF_S
        while not self._ready and not self._closed:
            try:
                if self._stream is None:
                    self._stream, found = await self._client.run(self._open, Repeat.READS)
                    if found < self._next_revision - 1:
                        await self._check_revision()
                    continue
                response = await self._stream.read()
            except EtcdRefusedError:
                raise
            except StoreWentBackError:
                self._drop_stream()
                raise
            except (UnavailableError, grpc.aio.AioRpcError, grpc.aio.BaseError):
                pass  # etcd is unreachable: other calls report it
            except asyncio.CancelledError:
                self._drop_stream()
                if was_asked_to_stop():
                    raise
                continue  # the client left this endpoint for the next one
            else:
                if response is not grpc.aio.EOF and not response.canceled:
                    self._take(response)
                    backoff_s = _FIRST_BACKOFF_S
                    continue
                if response is not grpc.aio.EOF:
                    self._cancelled(response)
            self._drop_stream()
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def _check_revision(self) -> None:
        """Check by a linearizable read, which is not behind, that the store did not go back.

        Raises:
            StoreWentBackError: it is behind a revision that the watch has seen.
        """
        request = messages.RangeRequest(key=self._prefix.encode())
        answer = await self._client.ask(messages.RANGE, request, Repeat.READS)
        if answer.header.revision < self._next_revision - 1:
            raise StoreWentBackError(self._next_revision - 1, answer.header.revision)

    async def _open(self, endpoint: Endpoint, metadata: Metadata) -> tuple[Any, int]:
        """A stream on which etcd has confirmed the watch, and the member's revision."""
        request = messages.WatchRequest()
        create = request.create_request
        create.key, create.range_end = self._prefix.encode(), prefix_end(self._prefix)
        create.start_revision = self._next_revision
        create.fragment = True
        stream = endpoint.stream(messages.WATCH, metadata)
        try:
            async with asyncio.timeout(self._client.settings.try_timeout_ms / 1000):
                response = await first_answer(stream, request)
            if response.canceled:
                raise grpc.aio.AioRpcError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    grpc.aio.Metadata(),
                    grpc.aio.Metadata(),
                    response.cancel_reason,
                )
        except TimeoutError as error:
            stream.cancel()
            raise OutcomeUnknownError("no answer in time") from error
        except BaseException:
            stream.cancel()
            raise
        return stream, response.header.revision

    def _take(self, response: Any) -> None:
        """Add whole revisions to `_ready`."""
        self._fragments += response.events
        if response.fragment:
            return
        events, self._fragments = self._fragments, []
        for revision, changes in groupby(events, lambda event: event.kv.mod_revision):
            if revision >= self._next_revision:
                self._ready.append(list(map(_event, changes)))
                self._next_revision = revision + 1

    def _cancelled(self, response: Any) -> None:
        """etcd ended the watch.  Raises if opening it again is of no use."""
        self._drop_stream()
        if response.compact_revision:
            raise CompactedError(
                f"revision {self._next_revision} was asked for, and those before "
                f"{response.compact_revision} are gone"
            )

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        self._fragments = []


def _event(message: Any) -> WatchEvent:
    kv = key_value(message.kv)
    if message.type == messages.EVENT_DELETE:
        return DeleteEvent(kv.key, kv.mod_revision)
    return PutEvent(kv)
