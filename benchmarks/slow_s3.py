"""An S3 server for benchmarks: objects in a folder, every PUT answered after a stated time.

That time runs from the request's head: a PUT takes the stated time, and longer only if its body
does.  The server's own time for receiving and storing is not added to it.

moto's server tops out at 200-290 MB/s and keeps objects in memory; this one keeps up with
an agent and counts its requests, so that PUTs per GiB and their price are measured,
not computed.  It has the calls that aiobotocore (and S3A) need for one agent: PUT (also
``If-None-Match: *``), multipart uploads, GET with ranges, HEAD, DELETE, DeleteObjects,
ListObjectsV2, GET of the bucket's location.  Signatures are not checked, any bucket exists,
and all objects are lost when it ends: it is for measurements; the contract suites define S3.

    GET /_stats    {"PUT": requests, …, "put_bytes": …} since the start

``--hollow`` keeps the newest 16 GiB as they are and of older objects only the last 1 MiB (a
hole before it), for loads that are larger than the disk: sealing reads recent objects, and no
process reads the bytes before an old footer.

    python -m benchmarks.slow_s3 [--port 9000] [--put-delay-ms 60] [--hollow]

Prints ``s3 http://127.0.0.1:PORT`` when it is ready.
Shell.
"""

import argparse
import asyncio
import bisect
import email.utils
import hashlib
import itertools
import logging
import os
import re
import signal
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from aiohttp import web

_HOLLOW_TAIL_BYTES = 1 << 20
_WHOLE_BYTES = 16 << 30
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_RANGE = re.compile(r"bytes=(\d*)-(\d*)$")


@dataclass(frozen=True, slots=True)
class _Object:
    path: Path
    size: int
    etag: str
    modified: float


@dataclass(slots=True)
class _Bucket:
    objects: dict[str, _Object] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    def put(self, key: str, stored: _Object) -> None:
        old = self.objects.get(key)
        self.objects[key] = stored
        if old is None:
            bisect.insort(self.keys, key)
        else:
            old.path.unlink(missing_ok=True)

    def remove(self, key: str) -> None:
        old = self.objects.pop(key, None)
        if old is not None:
            del self.keys[bisect.bisect_left(self.keys, key)]
            old.path.unlink(missing_ok=True)


class SlowS3:
    """The handlers; keys sort as Python strings do, which for UTF-8 is S3's byte order."""

    def __init__(self, folder: Path, put_delay_seconds: float, *, hollow: bool) -> None:
        self._folder, self._put_delay, self._hollow = folder, put_delay_seconds, hollow
        self._buckets: dict[str, _Bucket] = {}
        self._uploads: dict[str, dict[int, _Object]] = {}
        self._names = itertools.count()
        self._stats: Counter[str] = Counter()
        self._whole: deque[_Object] = deque()
        self._whole_bytes = 0

    def application(self) -> web.Application:
        application = web.Application(client_max_size=1 << 34)
        application.router.add_get("/_stats", self._get_stats)
        application.router.add_route("*", "/{bucket}", self._bucket)
        application.router.add_route("*", "/{bucket}/{key:.*}", self._object)
        return application

    async def _get_stats(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self._stats))

    async def _bucket(self, request: web.Request) -> web.StreamResponse:
        bucket = self._buckets.setdefault(request.match_info["bucket"], _Bucket())
        match request.method:
            case "GET" if "location" in request.query:
                return _xml("<LocationConstraint/>")
            case "GET":
                self._stats["LIST"] += 1
                return self._list(request, bucket)
            case "POST" if "delete" in request.query:
                self._stats["DELETE_OBJECTS"] += 1
                return _delete_objects(bucket, await request.read())
            case "PUT" | "HEAD":
                return web.Response()
            case _:
                return _error(501, "NotImplemented")

    async def _object(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["key"]
        if not key:
            return await self._bucket(request)
        bucket = self._buckets.setdefault(request.match_info["bucket"], _Bucket())
        self._stats[request.method] += 1
        match request.method:
            case "PUT":
                return await self._put(request, bucket, key)
            case "GET" | "HEAD":
                return await self._get(request, bucket, key)
            case "DELETE":
                if "uploadId" in request.query:
                    self._discard_upload(request.query["uploadId"])
                else:
                    bucket.remove(key)
                return web.Response(status=204)
            case "POST":
                return await self._multipart(request, bucket, key)
            case _:
                return _error(501, "NotImplemented")

    async def _put(self, request: web.Request, bucket: _Bucket, key: str) -> web.Response:
        if "x-amz-decoded-content-length" in request.headers or (
            "x-amz-copy-source" in request.headers
        ):
            return _error(501, "NotImplemented")
        answered_at = asyncio.get_running_loop().time() + self._put_delay
        only_new = request.headers.get("If-None-Match") == "*"
        if only_new and key in bucket.objects:
            await request.read()
            return _error(412, "PreconditionFailed")
        stored = await self._store(request)
        await asyncio.sleep(answered_at - asyncio.get_running_loop().time())
        if "uploadId" in request.query:
            number = int(request.query["partNumber"])
            self._uploads[request.query["uploadId"]][number] = stored
        elif only_new and key in bucket.objects:
            stored.path.unlink()
            return _error(412, "PreconditionFailed")
        else:
            bucket.put(key, stored)
        return web.Response(headers={"ETag": stored.etag})

    async def _store(self, request: web.Request) -> _Object:
        """Store the request's body in a file."""
        path = self._folder / str(next(self._names))
        size = 0
        with path.open("wb", buffering=0) as file:
            async for chunk in request.content.iter_any():
                file.write(chunk)
                size += len(chunk)
        self._stats["put_bytes"] += size
        # An ETag is opaque; hashing the body would be the largest cost of a PUT here.
        etag = hashlib.md5(f"{path.name}-{size}".encode(), usedforsecurity=False).hexdigest()
        stored = _Object(path, size, f'"{etag}"', time.time())
        if self._hollow:
            self._make_room(stored)
        return stored

    def _make_room(self, stored: _Object) -> None:
        """Cut holes into objects older than the newest `_WHOLE_BYTES`."""
        self._whole.append(stored)
        self._whole_bytes += stored.size
        while self._whole_bytes > _WHOLE_BYTES:
            old = self._whole.popleft()
            self._whole_bytes -= old.size
            if old.size > _HOLLOW_TAIL_BYTES and old.path.exists():
                with old.path.open("r+b", buffering=0) as file:
                    tail = os.pread(
                        file.fileno(), _HOLLOW_TAIL_BYTES, old.size - _HOLLOW_TAIL_BYTES
                    )
                    file.truncate(0)
                    os.pwrite(file.fileno(), tail, old.size - _HOLLOW_TAIL_BYTES)

    async def _get(self, request: web.Request, bucket: _Bucket, key: str) -> web.StreamResponse:
        stored = bucket.objects.get(key)
        if stored is None:
            return _error(404, "NoSuchKey", body=request.method == "GET")
        headers = {
            "ETag": stored.etag,
            "Last-Modified": email.utils.formatdate(stored.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(stored.size)})
        start, end, status = 0, stored.size, 200
        if "Range" in request.headers:
            found = _RANGE.match(request.headers["Range"])
            if found is None:
                return _error(400, "InvalidArgument")
            status = 206
            if found[1]:
                start = int(found[1])
                end = min(int(found[2]) + 1, stored.size) if found[2] else stored.size
            else:
                start = max(stored.size - int(found[2]), 0)
            if start >= stored.size:
                return _error(416, "InvalidRange")
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{stored.size}"
        self._stats["get_bytes"] += end - start
        with stored.path.open("rb") as file:
            body = os.pread(file.fileno(), end - start, start)
        return web.Response(status=status, headers=headers, body=body)

    async def _multipart(
        self, request: web.Request, bucket: _Bucket, key: str
    ) -> web.StreamResponse:
        """POST ?uploads starts one, POST ?uploadId joins its parts in their order."""
        if "uploads" in request.query:
            upload_id = f"upload-{next(self._names)}"
            self._uploads[upload_id] = {}
            return _xml(
                "<InitiateMultipartUploadResult>"
                f"<Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>"
                "</InitiateMultipartUploadResult>"
            )
        await request.read()
        if request.headers.get("If-None-Match") == "*" and key in bucket.objects:
            return _error(412, "PreconditionFailed")
        parts = self._uploads.get(request.query.get("uploadId", ""))
        if not parts:
            return _error(404, "NoSuchUpload")
        path = self._folder / str(next(self._names))
        with path.open("wb") as whole:
            for _, part in sorted(parts.items()):
                whole.write(part.path.read_bytes())
        self._discard_upload(request.query["uploadId"])
        bucket.put(key, _Object(path, path.stat().st_size, f'"{path.name}-1"', time.time()))
        return _xml(
            f"<CompleteMultipartUploadResult><Key>{escape(key)}</Key>"
            f"<ETag>{path.name}-1</ETag></CompleteMultipartUploadResult>"
        )

    def _discard_upload(self, upload_id: str) -> None:
        for part in self._uploads.pop(upload_id, {}).values():
            part.path.unlink()

    def _list(self, request: web.Request, bucket: _Bucket) -> web.Response:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        most = min(int(query.get("max-keys", "1000")), 1000)
        encode = quote if query.get("encoding-type") == "url" else escape
        contents: list[str] = []
        folders: list[str] = []
        truncated, last = False, ""
        at = max(bisect.bisect_right(bucket.keys, after), bisect.bisect_left(bucket.keys, prefix))
        for key in itertools.islice(bucket.keys, at, None):
            if not key.startswith(prefix):
                break
            head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            folder = prefix + head + cut
            if cut and (folder in folders or folder == after):
                last = key
                continue
            if len(contents) + len(folders) >= most:
                truncated = True
                break
            last = key
            if cut:
                folders.append(folder)
                continue
            stored = bucket.objects[key]
            modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
            contents.append(
                f"<Contents><Key>{encode(key)}</Key><LastModified>{modified}</LastModified>"
                f"<ETag>{escape(stored.etag)}</ETag><Size>{stored.size}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        parts = "".join(contents) + "".join(
            f"<CommonPrefixes><Prefix>{encode(name)}</Prefix></CommonPrefixes>" for name in folders
        )
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
        url = "<EncodingType>url</EncodingType>" if encode is quote else ""
        return _xml(
            f"<ListBucketResult><Name>b</Name><Prefix>{encode(prefix)}</Prefix>"
            f"<KeyCount>{len(contents) + len(folders)}</KeyCount><MaxKeys>{most}</MaxKeys>{url}"
            f"<IsTruncated>{str(truncated).lower()}</IsTruncated>"
            f"{token if truncated else ''}{parts}</ListBucketResult>"
        )


def _delete_objects(bucket: _Bucket, body: bytes) -> web.Response:
    for element in ET.fromstring(body).iter():
        if element.tag.endswith("Key"):
            bucket.remove(element.text or "")
    return _xml("<DeleteResult/>")


def _xml(body: str) -> web.Response:
    return web.Response(text=_XML + body, content_type="application/xml")


def _error(status: int, code: str, *, body: bool = True) -> web.Response:
    text = f"{_XML}<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return web.Response(status=status, text=text if body else None, content_type="application/xml")


async def serve(port: int, put_delay_seconds: float, folder: Path, *, hollow: bool) -> None:
    """Serve until cancelled, or until SIGTERM, which leaves no files behind."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    server = SlowS3(folder, put_delay_seconds, hollow=hollow)
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    print(f"s3 {site.name}", flush=True)
    try:
        await stopped.wait()
    finally:
        await runner.cleanup()


def _is_news(record: logging.LogRecord) -> bool:
    """False for a connection reset by a client that cancelled a hedged PUT, or was killed."""
    return not (record.exc_info and isinstance(record.exc_info[1], ConnectionResetError))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--put-delay-ms", type=float, default=60.0)
    parser.add_argument("--dir", type=Path, help="where the temporary folder is made")
    parser.add_argument("--hollow", action="store_true")
    options = parser.parse_args()
    logging.getLogger("aiohttp.server").addFilter(_is_news)
    with tempfile.TemporaryDirectory(prefix="slow-s3-", dir=options.dir) as folder:
        delay_seconds = options.put_delay_ms / 1e3
        asyncio.run(serve(options.port, delay_seconds, Path(folder), hollow=options.hollow))


if __name__ == "__main__":
    main()
