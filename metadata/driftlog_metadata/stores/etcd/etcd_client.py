"""The connection to an etcd cluster: endpoints, tokens, deadlines, and the meaning of a failure.

    run(attempt) ──▶ endpoint in use ──▶ the next ──▶ … each once ──▶ UnavailableError
                       │ not reached, or refused there: nothing happened ─┘
                       │ no answer, and a repeat is harmless ─────────────┘
                       └ no answer, else ──▶ OutcomeUnknownError

A request is sent only on a connection that has answered, and did not break since: a failure
before that surely did not reach etcd, so the request may go to the next endpoint.  Calls and
watches leave a member that does not answer in time for the next endpoint, and return to it
only when that one fails too.

Every request asks for a member that has a leader (metadata ``hasleader``), so that a member
on the wrong side of a partition refuses at once, and ends its watches.

Adapter.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from driftlog_metadata.stores.errors import (
    AnswerTooLargeError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.stores.etcd import etcd_messages as messages
from driftlog_metadata.stores.etcd.etcd_errors import (
    EtcdRefusedError,
    EtcdVerdict,
    describe,
    details_of,
    error_of,
    is_from_etcd,
    verdict,
)

T = TypeVar("T")

Metadata = tuple[tuple[str, str], ...]

_HAS_LEADER: Final = ("hasleader", "true")

_PATIENCE_S: Final = 0.5
"""A caller that cancels a request after this long reached its own deadline without an answer."""


class Repeat(Enum):
    """The effect of a second copy of a request; a late copy may always arrive."""

    READS = auto()
    """None: the request changes nothing."""
    HARMLESS = auto()
    """The same effect again: the request may be sent to the next endpoint."""
    NEVER = auto()
    """A change that is not idempotent: the caller gets the unknown outcome and decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """Where etcd is, and how long to wait for it."""

    endpoints: tuple[str, ...]
    """``http://HOST:PORT`` or ``https://HOST:PORT`` of members, all of one kind.  The first that
    answers is used; give different agents different orders, so that they spread."""

    ca_file: Path | None = None
    """PEM of the authority that signs the servers' certificates; None: gRPC's own roots."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    """PEM of a client certificate and its key, where etcd has ``--client-cert-auth``."""

    user: str | None = None
    password: str = field(default="", repr=False)
    """For etcd with ``auth enable``.  Tokens are renewed when etcd says that they have expired."""

    connect_timeout_ms: int = 2_000
    """Longer: a dead endpoint is noticed later.  Shorter than a TLS handshake: no connection."""

    try_timeout_ms: int = 2_000
    """Of one request at one endpoint.  Longer: a longer gap in service when a member freezes.
    Shorter: elections and slow disks turn more commits into unknown outcomes."""

    max_answer_bytes: int = 32 * 1024 * 1024
    """Most bytes of one answer; a larger one is not received, and prefixes are read in more
    pages.  More: more memory.  Less than some values of 1.5 MB: reads of several fail."""

    keep_alive_timeout_ms: int = 1_000
    """Of a lease's keep-alive at one endpoint, and of connecting for it, so that several endpoints
    fit into a time to live.  Doubled after a keep-alive that took longer."""


class Endpoint:
    """One member: a connection that gRPC makes on demand, and the streams that are open on it."""

    def __init__(self, url: str, channel: grpc.aio.Channel) -> None:
        self.url = url
        self.is_ours = False
        """The member has proven, since its connection was last lost, that it is of this cluster."""
        self.streams: set[Any] = set()
        self._channel = channel
        self._methods: dict[str, Any] = {}

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up, so that a request is sent at once."""
        return bool(self._channel.get_state() is grpc.ChannelConnectivity.READY)

    async def ask(
        self, method: messages.Method, request: Any, metadata: Metadata, timeout_s: float
    ) -> Any:
        """One request, one answer.  Raises grpc.aio.AioRpcError."""
        call = self._methods.get(method.path)
        if call is None:
            call = self._methods[method.path] = self._channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return await call(request, metadata=metadata, timeout=timeout_s)

    def stream(
        self, method: messages.Method, metadata: Metadata, timeout_s: float | None = None
    ) -> Any:
        """A bidirectional stream: ``write``, ``read``, ``cancel``."""
        call = self._channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(metadata=metadata, timeout=timeout_s)
        self.streams.add(call)
        call.add_done_callback(self.streams.discard)
        return call

    def cancel_streams(self) -> None:
        """End the streams; `lost_stream` tells their readers."""
        for stream in list(self.streams):
            stream.cancel()

    async def close(self) -> None:
        """End every call, and hang up."""
        await self._channel.close()


Attempt = Callable[[Endpoint, Metadata], Awaitable[T]]


class _ElsewhereError(Exception):
    """This endpoint did nothing, and another one may succeed; the message says why."""


class EtcdClient:
    """A client of the cluster, as the module says.  Made and used on one event loop.

    Raises:
        ValueError: the settings do not fit together, or a file of them cannot be read.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings
        credentials = _credentials(settings)
        options = _channel_options(settings)
        self._endpoints = [
            Endpoint(url, _channel(url, credentials, options)) for url in settings.endpoints
        ]
        self._current = 0
        self._cluster_id: int | None = None
        self._token: str | None = None
        self._renewing = asyncio.Lock()
        self._closed = False

    async def close(self) -> None:
        """Hang up.  A repeat is harmless."""
        self._closed = True
        for endpoint in self._endpoints:
            await endpoint.close()

    async def ask(self, method: messages.Method, request: Any, repeat: Repeat) -> Any:
        """One request, one answer.

        Raises:
            UnavailableError: nothing happened.
            OutcomeUnknownError: it may have happened; for `Repeat.READS` only as the next.
            AnswerTooLargeError: the answer is over `EtcdSettings.max_answer_bytes`.
            LeaseNotFoundError, LeaseExistsError, CompactedError: etcd's answer.
            ValueError: over a limit of the server's; nothing happened.
        """
        timeout_s = self.settings.try_timeout_ms / 1000

        async def attempt(endpoint: Endpoint, metadata: Metadata) -> Any:
            return await endpoint.ask(method, request, metadata, timeout_s)

        return await self.run(attempt, repeat)

    async def run(
        self, attempt: Attempt[T], repeat: Repeat, *, connect_timeout_s: float | None = None
    ) -> T:
        """Attempt at the endpoint in use, then at the others, each once.

        Raises:
            what `ask` raises.
        """
        if connect_timeout_s is None:
            connect_timeout_s = self.settings.connect_timeout_ms / 1000
        if self._closed:
            raise UnavailableError("the connection to etcd is closed")
        failures = []
        unknown = False
        first = self._current
        for number in range(len(self._endpoints)):
            endpoint = self._endpoints[(first + number) % len(self._endpoints)]
            began_s = time.monotonic()
            try:
                return await self._at(endpoint, attempt, connect_timeout_s)
            except asyncio.CancelledError:
                if time.monotonic() - began_s >= _PATIENCE_S:
                    self.leave(endpoint)  # or each repeat of the caller asks it again
                raise
            except _ElsewhereError as error:
                failures.append(f"{endpoint.url}: {error}")
            except AnswerTooLargeError:
                raise
            except OutcomeUnknownError as error:
                failures.append(f"{endpoint.url}: {error}")
                unknown = repeat is not Repeat.READS
                if repeat is Repeat.NEVER:
                    self.leave(endpoint)
                    break
            except UnavailableError as error:
                if not unknown:
                    raise
                failures.append(str(error))  # refused here; an earlier endpoint may have done it
                break
            self.leave(endpoint)
        told = "; ".join(failures)
        if unknown:
            raise OutcomeUnknownError(f"etcd may have done it, or not: {told}")
        raise UnavailableError(f"no etcd endpoint did it: {told}")

    async def each(self, attempt: Attempt[T]) -> list[T]:
        """Attempt at every endpoint; the answers of those that answer."""
        connect_timeout_s = self.settings.connect_timeout_ms / 1000
        answers: list[T] = []
        for endpoint in self._endpoints:
            with contextlib.suppress(_ElsewhereError, OutcomeUnknownError, UnavailableError):
                answers.append(await self._at(endpoint, attempt, connect_timeout_s))
        return answers

    def leave(self, endpoint: Endpoint) -> None:
        """If *endpoint* is in use, use the next one from now on, for watches as well."""
        if endpoint is self._endpoints[self._current] and len(self._endpoints) > 1:
            self._current = (self._current + 1) % len(self._endpoints)
            endpoint.cancel_streams()

    # ── One endpoint ──

    async def _at(self, endpoint: Endpoint, attempt: Attempt[T], connect_timeout_s: float) -> T:
        """Connect, authenticate, attempt; repeat once with a new token if the old one expired."""
        await self._reach(endpoint, connect_timeout_s)
        token = await self._fresh_token(endpoint, None)
        try:
            return await self._once(endpoint, attempt, token)
        except _TokenIsOverError as over:
            if self.settings.user is None:
                message = f"etcd at {endpoint.url}: {describe(str(over))}"
                raise EtcdRefusedError(message) from over
        token = await self._fresh_token(endpoint, token)
        try:
            return await self._once(endpoint, attempt, token)
        except _TokenIsOverError as over:
            raise _ElsewhereError(f"a new token was refused: {over}") from over

    async def _once(self, endpoint: Endpoint, attempt: Attempt[T], token: str | None) -> T:
        try:
            with _told_apart():
                return await attempt(endpoint, _metadata(token))
        except grpc.aio.AioRpcError as error:
            details = details_of(error)
            match verdict(details):
                case EtcdVerdict.ELSEWHERE:
                    raise _ElsewhereError(describe(details)) from error
                case EtcdVerdict.TOKEN:
                    raise _TokenIsOverError(details) from error
                case EtcdVerdict.UNKNOWN:
                    raise OutcomeUnknownError(describe(details)) from error
                case final:
                    message = f"etcd at {endpoint.url}: {describe(details)}"
                    raise error_of(final, message) from error
        except _LostHereError as error:
            raise OutcomeUnknownError(str(error)) from error

    async def _reach(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Ensure a connection that answers, by a status request, which changes nothing."""
        if endpoint.is_connected and endpoint.is_ours:
            return
        endpoint.is_ours = False
        request = messages.StatusRequest()
        try:
            with _told_apart():
                status = await endpoint.ask(
                    messages.STATUS, request, _metadata(self._token), timeout_s
                )
        except grpc.aio.AioRpcError as error:
            details = details_of(error)
            if not is_from_etcd(details) or verdict(details) is EtcdVerdict.ELSEWHERE:
                raise _ElsewhereError(f"not reached: {describe(details)}") from error
        except _LostHereError as error:
            raise _ElsewhereError(str(error)) from error
        else:
            self._check_cluster(status.header.cluster_id)
            endpoint.is_ours = True

    def _check_cluster(self, cluster_id: int) -> None:
        if self._cluster_id is None:
            self._cluster_id = cluster_id
        elif self._cluster_id != cluster_id:
            raise _ElsewhereError(
                f"a member of the etcd cluster {cluster_id:x}, and the others are of "
                f"{self._cluster_id:x}: correct the list of endpoints"
            )

    async def _fresh_token(self, endpoint: Endpoint, over: str | None) -> str | None:
        """A token other than *over*: empty where etcd needs none, None where there is no user."""
        if self.settings.user is None:
            return None
        if self._token is None or self._token == over:
            async with self._renewing:  # a password costs etcd a tenth of a second of hashing
                if self._token is None or self._token == over:
                    self._token = None
                    self._token = await self._authenticate(endpoint)
                return self._token
        return self._token

    async def _authenticate(self, endpoint: Endpoint) -> str:
        """A new token; empty where authentication is off."""
        request = messages.AuthenticateRequest(
            name=self.settings.user, password=self.settings.password
        )
        timeout_s = self.settings.try_timeout_ms / 1000
        try:
            with _told_apart():
                answer = await endpoint.ask(
                    messages.AUTHENTICATE, request, _metadata(None), timeout_s
                )
        except grpc.aio.AioRpcError as error:
            details = details_of(error)
            if "authentication is not enabled" in details:
                return ""
            if verdict(details) is EtcdVerdict.REFUSED:
                user = self.settings.user
                message = f"etcd at {endpoint.url}, user {user!r}: {describe(details)}"
                raise EtcdRefusedError(message) from error
            raise _ElsewhereError(f"no token: {describe(details)}") from error
        except _LostHereError as error:
            raise _ElsewhereError(f"no token: {error}") from error
        self._check_cluster(answer.header.cluster_id)
        return str(answer.token)


class _TokenIsOverError(Exception):
    """etcd does not know the token any more, or requires one."""


class _LostHereError(Exception):
    """The call ended on this side of the connection; etcd may have received it."""


@contextlib.contextmanager
def _told_apart() -> Iterator[None]:
    """Tell gRPC's cancellation of a call from the cancellation of this task.

    Raises:
        _LostHereError: the store was closed, or the client left this endpoint; or a bug of gRPC's.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if was_asked_to_stop():
            raise
        raise _LostHereError("the connection was closed here meanwhile") from error
    except grpc.aio.BaseError as error:
        raise _LostHereError(f"gRPC failed: {error!r}") from error


def was_asked_to_stop() -> bool:
    """Whether a CancelledError is for this task, not from a call that gRPC cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def first_answer(stream: Any, request: Any) -> Any:
    """Send *request* on a stream that was just opened; returns the answer.

    Raises:
        grpc.aio.AioRpcError: the stream ended instead.
    """
    try:
        await stream.write(request)
        answer = await stream.read()
    except asyncio.InvalidStateError:
        answer = grpc.aio.EOF  # it had ended before anything was written
    if answer is not grpc.aio.EOF:
        return answer
    raise grpc.aio.AioRpcError(
        await stream.code(),
        await stream.initial_metadata(),
        await stream.trailing_metadata(),
        await stream.details() or "the stream ended without an answer",
    )


def _metadata(token: str | None) -> Metadata:
    return (_HAS_LEADER, ("token", token)) if token else (_HAS_LEADER,)


def _channel_options(settings: EtcdSettings) -> list[tuple[str, int]]:
    connect_ms = settings.connect_timeout_ms
    return [
        ("grpc.max_receive_message_length", settings.max_answer_bytes),
        # No limit here: etcd limits requests (`--max-request-bytes`).
        ("grpc.max_send_message_length", -1),
        # The backstop for a member that froze while nothing but a watch was open on it.  etcd hangs
        # up on pings more often than every 5 s (`--grpc-keepalive-min-time`), or without a stream.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 3_000),
        ("grpc.http2.ping_timeout_ms", 3_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.min_reconnect_backoff_ms", connect_ms),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # gRPC repeats no request by itself and uses no HTTP proxy.
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        # Each client has connections of its own: a keep-alive does not wait behind a bulk read.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def _channel(
    url: str, credentials: grpc.ChannelCredentials | None, options: list[tuple[str, int]]
) -> grpc.aio.Channel:
    address = url.partition("://")[2]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)


def _credentials(settings: EtcdSettings) -> grpc.ChannelCredentials | None:
    schemes = {url.partition("://")[0] for url in settings.endpoints}
    files = (settings.ca_file, settings.certificate_file, settings.key_file)
    if not settings.endpoints:
        raise ValueError("no etcd endpoint: give at least one, as http://HOST:2379")
    for url in settings.endpoints:
        scheme, _, address = url.partition("://")
        if scheme not in ("http", "https") or not address.rpartition(":")[2].isdecimal():
            raise ValueError(f"not an etcd endpoint: {url!r}; write http(s)://HOST:PORT")
    if len(schemes) > 1:
        raise ValueError("some etcd endpoints are http and some https: all or none are encrypted")
    if (settings.certificate_file is None) != (settings.key_file is None):
        raise ValueError("a client certificate for etcd needs its key, and a key its certificate")
    if schemes == {"http"}:
        if any(files):
            raise ValueError("certificates for etcd are set, and its endpoints are http: use https")
        return None
    ca, certificate, key = map(_read, files)
    return grpc.ssl_channel_credentials(
        root_certificates=ca, private_key=key, certificate_chain=certificate
    )


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}, for TLS to etcd: {error.strerror}") from error
