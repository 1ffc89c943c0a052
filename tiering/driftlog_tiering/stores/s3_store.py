"""The object store in S3, through aiobotocore, with its costly defaults turned off.

    put ─▶ botocore: URL, headers, signature (UNSIGNED-PAYLOAD) ─▶ aiohttp: the caller's
           buffers, slice by slice, never joined ─▶ socket

The SDK's defaults cost three times the CPU: a CRC of every body (driftlog's batches
carry their own, and TLS its MAC) and, once that is off, SHA-256 in its place.  Its
retries are off: the caller owns the request's deadline.  One is left, in aiohttp: a request
whose connection is closed before any answer, as a kept one may be, is sent once more
(RFC 9110, 9.2.2), so `create` may meet its own object, as the port says.

Bodies from 1 MiB on ask first (``Expect: 100-continue``): a throttled or forbidden PUT
is then answered before megabytes are sent, instead of a reset under them that would
leave its outcome unknown.  It costs a round trip of about 1 ms in 30 or more.

Adapter.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from botocore.loaders import Loader, create_loader

from driftlog_metadata.stores.errors import OutcomeUnknownError, StoreError, UnavailableError
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_keys import (
    MAX_PAGE_SIZE,
    MAX_PREFIX_BYTES,
    body_bytes,
    check_key,
    check_page_size,
    check_range,
    is_key,
)
from driftlog_tiering.stores.object_store import Listing, ObjectInfo
from driftlog_tiering.stores.s3_errors import refusal, translated

MAX_CONNECTIONS: Final = 64
"""Uploads, hedges, cold reads and sealing at once.  More wait for a connection."""

CONNECT_TIMEOUT_MS: Final = 3_000
READ_TIMEOUT_MS: Final = 60_000
"""Backstops: callers have shorter deadlines.  Longer: a dead peer is noticed later."""

_ASK_FIRST_BYTES: Final = 1 << 20
_SLICE_BYTES: Final = 1 << 18
"""Passed to the transport at once; before Python 3.12 it copies what the socket does not take."""


class S3ObjectStore:
    """The objects of one bucket under one prefix.  Made with `open`."""

    def __init__(self, bucket: str, prefix: str, client_options: Mapping[str, Any]) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._client_options = client_options
        self._opening = asyncio.Lock()
        self._opened = AsyncExitStack()
        self._connected: Any = None

    @classmethod
    def open(
        cls,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        max_connections: int = MAX_CONNECTIONS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        read_timeout_ms: int = READ_TIMEOUT_MS,
    ) -> "S3ObjectStore":
        """A store that connects with its first request.

        Args:
            bucket: must exist.
            prefix: stands before every key, without slashes at its ends; may be empty.
            endpoint_url: of a server that is not Amazon's; None: AWS_ENDPOINT_URL_S3,
                AWS_ENDPOINT_URL or the profile.
            region: None: AWS_REGION, AWS_DEFAULT_REGION, the profile, or us-east-1.

        Credentials are found as every AWS SDK finds them.

        Raises:
            ValueError: no key fits under *prefix*.
        """
        if prefix and not (is_key(prefix) and len(prefix.encode()) <= MAX_PREFIX_BYTES):
            raise ValueError(f"not a prefix of object keys: {prefix!r}")
        endpoint_url = (
            endpoint_url
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
            or None
        )
        config = AioConfig(
            max_pool_connections=max_connections,
            connect_timeout=connect_timeout_ms / 1000,
            read_timeout=read_timeout_ms / 1000,
            retries={"total_max_attempts": 1, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={
                "payload_signing_enabled": False,
                # Only Amazon's DNS has a name for every bucket.
                **({"addressing_style": "path"} if endpoint_url else {}),
            },
            warm_up_loader_caches=True,  # Read 1 MB of JSON in a thread, not on the loop.
        )
        region = region or os.environ.get("AWS_REGION") or None
        options = {"config": config, "endpoint_url": endpoint_url, "region_name": region}
        return cls(bucket, prefix, options)

    # ── The port ──

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        check_key(key)
        await self._write("put", key, body, {})

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        check_key(key)
        await self._write("create", key, body, {"IfNoneMatch": "*"})

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        check_key(key)
        check_range(start, end)
        if start == end:  # HTTP has no empty range.
            await self.stat(key)
            return b""
        parameters = self._of(key)
        if start > 0 or end is not None:
            parameters["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        with translated(f"get {self._url(key)}", writes=False, reads_key=True):
            client = await self._client()
            try:
                answer = await client.get_object(**parameters)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("InvalidRange", "416"):
                    return b""  # It starts at or past the end.
                raise
            async with answer["Body"] as stream:
                content: bytes = await stream.read()
        expected = answer["ContentLength"]
        if len(content) != expected:
            raise UnavailableError(f"get {self._url(key)}: {len(content)} of {expected} bytes")
        return content

    async def stat(self, key: str) -> ObjectInfo:
        check_key(key)
        with translated(f"stat {self._url(key)}", writes=False, reads_key=True):
            client = await self._client()
            try:
                answer = await client.head_object(**self._of(key))
            except ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
                    await self._is_absent(client, key)
                raise
        return ObjectInfo(key, answer["ContentLength"], _ms(answer["LastModified"]))

    async def _is_absent(self, client: Any, key: str) -> None:
        """Repeat a HEAD that was answered with 404 as a GET: only a body has S3's error code.

        Raises:
            ClientError: S3's error for the object.
        """
        answer = await client.get_object(**self._of(key), Range="bytes=0-0")
        async with answer["Body"] as stream:
            await stream.read()

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = MAX_PAGE_SIZE
    ) -> AsyncIterator[Listing]:
        check_page_size(page_size)
        parameters = {"Bucket": self._bucket, "MaxKeys": page_size}
        parameters["Prefix"] = self._prefix + prefix
        if start_after:
            parameters["StartAfter"] = self._prefix + start_after
        held: list[ObjectInfo] = []  # Less than a page, where foreign keys stood in between.
        empty = True
        while True:
            with translated(f"list {self._url(prefix)}", writes=False):
                answer = await (await self._client()).list_objects_v2(**parameters)
                found = self._listing(answer)
            held += found.objects
            more = bool(answer.get("IsTruncated"))
            while len(held) >= page_size or (not more and (held or empty)):
                yield Listing(tuple(held[:page_size]), found.store_now_ms)
                del held[:page_size]
                empty = False
            if not more:
                return
            if not answer.get("Contents"):
                raise UnavailableError(f"list {self._url(prefix)}: a truncated page has no keys")
            parameters["StartAfter"] = answer["Contents"][-1]["Key"]
            # Only foreign keys: there may be many of them before the first of driftlog's.
            parameters["MaxKeys"] = page_size if found.objects else MAX_PAGE_SIZE

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        distinct = [*dict.fromkeys(keys)]
        for i in range(0, len(distinct), MAX_PAGE_SIZE):
            batch = distinct[i : i + MAX_PAGE_SIZE]
            what = f"delete {len(batch)} objects, {self._url(batch[0])} first"
            objects = [{"Key": self._prefix + key} for key in batch]
            with translated(what, writes=True):
                answer = await (await self._client()).delete_objects(
                    Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True}
                )
            if answer.get("Errors"):
                raise _not_deleted(answer["Errors"], len(batch), what)

    async def close(self) -> None:
        self._connected = None
        await self._opened.aclose()

    # ── Requests ──

    async def _write(
        self, name: str, key: str, body: Sequence[Buffer], condition: Mapping[str, str]
    ) -> None:
        content = _Body(body)
        try:
            with translated(f"{name} {self._url(key)}", writes=True):
                client = await self._client()
                await client.put_object(**self._of(key), Body=content, **condition)
        finally:
            content.release()

    async def _client(self) -> Any:
        if self._connected is None:
            async with self._opening:
                if self._connected is None:
                    session = get_session()
                    session.register_component("data_loader", _loader())
                    creating = session.create_client("s3", **self._client_options)
                    client = await self._opened.enter_async_context(creating)
                    client.meta.events.register("request-created.s3.PutObject", _ask_first)
                    self._connected = client
        return self._connected

    def _of(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _url(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def _listing(self, answer: Mapping[str, Any]) -> Listing:
        found = {o["Key"][len(self._prefix) :]: o for o in answer.get("Contents", ())}
        objects = tuple(
            ObjectInfo(key, o["Size"], _ms(o["LastModified"]))
            for key, o in found.items()
            if is_key(key)  # not a console's "folder/", nor another foreign key
        )
        date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
        return Listing(objects, _ms(parsedate_to_datetime(date)))


class _Body(Payload):
    """The caller's buffers as botocore takes a body (it asks for ``read`` and ``len``) and as
    aiohttp writes one.  It can be written again: aiohttp does so on a stale connection.
    """

    _autoclose = True  # There is nothing to close.

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        super().__init__(None)
        self._buffers = buffers
        self._size = body_bytes(buffers)
        self._writer: AbstractStreamWriter | None = None

    def __len__(self) -> int:
        assert self._size is not None
        return self._size

    def read(self, _size: int = -1) -> bytes:
        """botocore checks only that this method exists: signing and sums of the body are off."""
        raise AssertionError("the SDK reads the body: payload signing or checksums are on")

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._buffers).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._writer = writer
        for buffer in self._buffers:
            view = memoryview(buffer).cast("B")
            for start in range(0, len(view), _SLICE_BYTES):
                await writer.write(view[start : start + _SLICE_BYTES])

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        assert content_length in (None, self._size), "the body is not as long as its header says"
        await self.write(writer)

    def release(self) -> None:
        """Give the buffers back to the caller, which may change them: send none of them late.

        After an answer the transport holds none of them; without one (cancelled,
        timed out) it is aborted, so that the object stays incomplete and S3 drops it.
        """
        self._buffers = ()
        transport = getattr(self._writer, "transport", None)
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()


@cache
def _loader() -> Loader:
    """botocore's description of S3, read once a process: 150 ms."""
    loader: Loader = create_loader()
    return loader


def _ask_first(request: AWSRequest, **_: object) -> None:
    """Remove ``Expect`` for small bodies: botocore sets it for all.  (It is not signed.)"""
    if len(request.data) < _ASK_FIRST_BYTES:
        del request.headers["Expect"]


def _not_deleted(errors: Sequence[Mapping[str, str]], asked: int, what: str) -> StoreError:
    first = errors[0]
    code, message = first.get("Code", ""), first.get("Message", "")
    told = f"{len(errors)} failed, {first.get('Key')} first"
    refused = refusal(code, message, f"{what}: {told}")
    if refused is not None and len(errors) == asked:
        return refused
    return OutcomeUnknownError(f"{what}: {told}: {code}: {message}")


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)
