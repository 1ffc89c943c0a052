"""Each answer of S3 means what the port says: from a server that answers as the test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import botocore.session
import pytest

from driftlog_metadata.stores.errors import OutcomeUnknownError, StoreError, UnavailableError
from driftlog_tiering.stores.object_store import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    NotFoundError,
)
from driftlog_tiering.stores.s3_store import S3ObjectStore
from tests.support.process_usage import free_port
from tests.support.s3_servers import S3Server

MIB = 1 << 20


def error(status: int, code: str) -> bytes:
    """An S3 error as it comes over the wire."""
    body = f"<Error><Code>{code}</Code><Message>told so</Message></Error>".encode()
    return answer(status, body)


def answer(
    status: int, body: bytes, announced_bytes: int | None = None, connection: str = "close"
) -> bytes:
    """A response; like moto's and LocalStack's, it closes its connection."""
    length = len(body) if announced_bytes is None else announced_bytes
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/xml\r\n"
    head += f"Date: Sat, 21 Nov 2026 12:00:00 GMT\r\nConnection: {connection}\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode() + body


@dataclass
class ScriptedServer:
    """Answers every request with *answer*; an empty one hangs up, None never answers."""

    answer: bytes | None = b""
    continues: bool = True
    """Whether a client that asks first is told to go on."""
    requests: list[str] = field(default_factory=list)
    """Heads, in lower case."""
    connections: int = 0
    body_bytes: int = 0
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether another may follow."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        self.requests.append(head)
        asks = "expect: 100-continue" in head
        if asks and self.continues:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not asks or self.continues:
            left = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            while left:
                part = await reader.read(min(left, 65536))
                if not part:
                    self.hung_up.set()
                    return False
                left -= len(part)
                self.body_bytes += len(part)
        if self.answer is None:
            await reader.read()
            self.hung_up.set()
            return False
        writer.write(self.answer)
        await writer.drain()
        return b"keep-alive" in self.answer


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of nobody."""
    server = S3Server(endpoint_url="", bucket="")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL")


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """Listens on the port in its *url*."""
    scripted = ScriptedServer()
    listening = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    yield scripted
    listening.close()


@pytest.fixture
async def store(server: ScriptedServer, credentials: None) -> AsyncIterator[S3ObjectStore]:
    """A store on the scripted server."""
    opened = S3ObjectStore.open("bucket", "p", endpoint_url=server.url)  # type: ignore[attr-defined]
    yield opened
    await opened.close()


async def outcome(call: Awaitable[object]) -> type[BaseException] | None:
    """What the call raised."""
    try:
        await call
    except StoreError as raised:
        return type(raised)
    return None


@pytest.mark.parametrize(
    ("status", "code", "write", "read"),
    [
        (503, "SlowDown", UnavailableError, UnavailableError),
        (429, "TooManyRequests", UnavailableError, UnavailableError),
        (400, "RequestTimeout", UnavailableError, UnavailableError),
        (409, "ConditionalRequestConflict", UnavailableError, UnavailableError),
        (409, "OperationAborted", UnavailableError, UnavailableError),
        (412, "PreconditionFailed", AlreadyExistsError, UnavailableError),
        (501, "NotImplemented", UnavailableError, UnavailableError),
        (403, "AccessDenied", AccessDeniedError, AccessDeniedError),
        (403, "InvalidAccessKeyId", AccessDeniedError, AccessDeniedError),
        (403, "SignatureDoesNotMatch", AccessDeniedError, AccessDeniedError),
        (403, "SomethingNew", AccessDeniedError, AccessDeniedError),
        (400, "ExpiredToken", AccessDeniedError, AccessDeniedError),
        (404, "NoSuchBucket", BucketNotFoundError, BucketNotFoundError),
        (404, "NoSuchKey", UnavailableError, NotFoundError),
        (500, "InternalError", OutcomeUnknownError, UnavailableError),
        (503, "ServiceUnavailable", OutcomeUnknownError, UnavailableError),
        (502, "BadGateway", OutcomeUnknownError, UnavailableError),
        (504, "GatewayTimeout", OutcomeUnknownError, UnavailableError),
    ],
)
async def test_an_error_says_whether_a_write_may_have_happened(
    store: S3ObjectStore,
    server: ScriptedServer,
    status: int,
    code: str,
    write: type[StoreError],
    read: type[StoreError],
) -> None:
    """
    Only what S3 refused in its own words has not; and nobody asks twice.
    """
    server.answer = error(status, code)

    assert write is await outcome(store.create("k", [b"body"]))
    assert read is await outcome(store.get("k"))
    assert ["put", "get"] == [head.split()[0] for head in server.requests]


async def test_only_s3_itself_says_that_an_object_is_absent(
    store: S3ObjectStore, server: ScriptedServer
) -> None:
    """
    Of one object, to a GET.  A proxy's page is no absence, nor is a HEAD without a body, nor what a
    listing is answered; a write that such a page answers may have happened.
    """

    async def listed() -> None:
        async for _ in store.list("flush/"):
            pass

    server.answer = answer(404, b"<html><body>no backend</body></html>")
    page = [
        await outcome(call)
        for call in (store.get("k"), store.stat("k"), store.get("k", 5, 5), listed())
    ]
    written = [
        await outcome(call)
        for call in (store.put("k", [b"b"]), store.create("k", [b"b"]), store.delete(["k"]))
    ]
    server.requests.clear()
    server.answer = error(404, "NoSuchKey")
    absent = [await outcome(call) for call in (store.get("k"), listed())]
    server.answer = None

    assert [UnavailableError] * 4 == page
    assert [OutcomeUnknownError] * 3 == written
    assert [NotFoundError, UnavailableError] == absent


async def test_a_lost_answer_is_unknown_for_a_write_only(
    store: S3ObjectStore, server: ScriptedServer
) -> None:
    """
    The server takes the request and hangs up.
    """
    server.answer = b""

    assert OutcomeUnknownError is await outcome(store.put("k", [b"body"]))
    assert OutcomeUnknownError is await outcome(store.put("k", [b"x" * (2 * MIB)]))
    assert OutcomeUnknownError is await outcome(store.delete(["k"]))
    assert UnavailableError is await outcome(store.get("k"))
    assert UnavailableError is await outcome(store.stat("k"))


async def test_where_nobody_listens_nothing_happened(credentials: None) -> None:
    """
    A refused connection took no request.
    """
    store = S3ObjectStore.open("bucket", endpoint_url=f"http://127.0.0.1:{free_port()}")

    assert UnavailableError is await outcome(store.put("k", [b"body"]))
    assert UnavailableError is await outcome(store.get("k"))
    await store.close()


async def test_half_an_answer_is_no_object(store: S3ObjectStore, server: ScriptedServer) -> None:
    """
    A body that ends before its length is not returned.
    """
    server.answer = answer(200, b"x" * 50, announced_bytes=100)

    assert UnavailableError is await outcome(store.get("k"))


async def test_a_big_body_is_not_sent_to_who_refuses_it(
    store: S3ObjectStore, server: ScriptedServer
) -> None:
    """
    It is asked for first, so that the refusal arrives instead of a reset.
    """
    server.answer, server.continues = error(503, "SlowDown"), False

    assert UnavailableError is await outcome(store.put("k", [b"x" * (8 * MIB)]))
    assert 0 == server.body_bytes


async def test_requests_are_lean(store: S3ObjectStore, server: ScriptedServer) -> None:
    """
    No checksum, no signed payload, and no round trip before a small body.
    """
    server.answer = answer(200, b"")

    await store.put("k", [b"ab", b"", b"c"])
    await store.create("k", [b"x" * (2 * MIB)])

    small, big = server.requests
    assert 3 + 2 * MIB == server.body_bytes
    assert small.startswith("put /bucket/p/k http/1.1\r\n")
    assert "expect:" not in small
    assert "expect: 100-continue" in big
    assert "if-none-match:" not in small
    assert "if-none-match: *" in big
    for head in (small, big):
        assert "x-amz-content-sha256: unsigned-payload" in head
        assert "x-amz-checksum" not in head
        assert "x-amz-sdk-checksum" not in head
        assert "content-md5" not in head


async def test_connections_are_kept(store: S3ObjectStore, server: ScriptedServer) -> None:
    """
    Requests one after another need one, whatever their bodies.
    """
    server.answer = answer(200, b"", connection="keep-alive")

    await store.put("k", [])
    await store.put("k", [b"ab", b"c"])
    await store.put("k", [b"x" * (5 * MIB)] * 2)
    await store.create("k", [b"x"])
    assert b"" == await store.get("k")
    await store.delete(["k"])

    assert 6 == len(server.requests)
    assert 1 == server.connections


async def test_cancelling_hangs_up(store: S3ObjectStore, server: ScriptedServer) -> None:
    """
    The caller's deadline passes through, and S3 hears of it.
    """
    server.answer = None
    waiting = asyncio.ensure_future(store.put("k", [b"x" * (2 * MIB)]))
    while server.body_bytes < 2 * MIB:
        await asyncio.wait({waiting}, timeout=0.01)

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(server.hung_up.wait(), 10)


@pytest.mark.parametrize(
    ("failed", "expected"),
    [(["a"], OutcomeUnknownError), (["a", "b"], AccessDeniedError)],
)
async def test_keys_that_were_not_deleted_are_reported(
    store: S3ObjectStore, server: ScriptedServer, failed: list[str], expected: type[StoreError]
) -> None:
    """
    S3 answers 200 and lists them; when all were refused, nothing happened.
    """
    entries = "".join(
        f"<Error><Key>p/{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        for key in failed
    )
    server.answer = answer(200, f"<DeleteResult>{entries}</DeleteResult>".encode())

    with pytest.raises(expected, match="p/a"):
        await store.delete(["a", "b"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda store: store.put("k", [b"x"]), "AWS_ACCESS_KEY_ID"),
        (lambda store: store.get("k"), "AWS_PROFILE"),
    ],
)
async def test_who_has_no_credentials_is_told_where_to_put_them(
    server: ScriptedServer,
    credentials: None,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[S3ObjectStore], Awaitable[object]],
    message: str,
) -> None:
    """
    And nothing is sent.
    """
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = S3ObjectStore.open("bucket", endpoint_url=server.url)  # type: ignore[attr-defined]

    with pytest.raises(AccessDeniedError, match=message):
        await call(store)

    assert [] == server.requests
    await store.close()


async def test_a_bucket_that_is_not_there_is_named(moto_s3: S3Server, credentials: None) -> None:
    """
    Whatever is asked of it; but a HEAD has no body to say so.
    """
    store = S3ObjectStore.open("no-such-bucket", endpoint_url=moto_s3.endpoint_url)

    for call in (store.put("k", [b"x"]), store.get("k"), store.delete(["k"])):
        with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
            await call
    with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
        _ = [page async for page in store.list("")]
    await store.close()


async def test_what_is_no_key_is_not_listed(moto_s3: S3Server, credentials: None) -> None:
    """
    The empty object that S3's console makes for a folder, and objects beside the prefix.
    """
    foreign = botocore.session.get_session().create_client("s3", endpoint_url=moto_s3.endpoint_url)
    for key in ("p/", "p/a/", "p//b", "pp/x", "q"):
        foreign.put_object(Bucket=moto_s3.bucket, Key=key, Body=b"")
    store = S3ObjectStore.open(moto_s3.bucket, "p", endpoint_url=moto_s3.endpoint_url)
    await store.put("a/1", [b"x"])

    for size in (1, 2, 1000):
        listing = [page async for page in store.list("", page_size=size)]

        assert ["a/1"] == [info.key for page in listing for info in page.objects]
    await store.close()


async def test_a_page_that_is_truncated_and_has_no_keys_is_no_answer(
    store: S3ObjectStore, server: ScriptedServer
) -> None:
    """
    Where the next one begins is not known: the listing is asked for again.
    """
    body = b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
    server.answer = answer(200, body)

    with pytest.raises(UnavailableError, match="has no keys"):
        async for _ in store.list("flush/"):
            pass
