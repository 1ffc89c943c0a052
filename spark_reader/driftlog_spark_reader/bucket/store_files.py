"""Names and bytes of a bucket through the object store of the agents, without a JVM.

Python data sources and Spark Connect have no Hadoop file system in their process: credentials,
region and endpoint come from where boto3 finds them.

Adapter.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from driftlog_metadata.stores.errors import DeclinedError, StoreError
from driftlog_spark_reader.common.errors import StorageError
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.locations import open_object_store
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

T = TypeVar("T")

TRIES: Final = 4
"""Of one request.  More: a store that throttles or restarts fails fewer tasks."""

_FIRST_PAUSE_S: Final = 0.2


class StoreFiles:
    """A bucket's prefix.  Its methods may be called from several threads; each call blocks.

    Raises:
        StorageError: *location* is none.
    """

    def __init__(self, location: str) -> None:
        self.root = location.rstrip("/")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="object store", daemon=True
        )
        self._thread.start()
        try:
            self._store: ObjectStore = self._result(_open(location))
        except ValueError as error:
            self._end()
            raise StorageError(str(error)) from error

    def path(self, key: str) -> str:
        """The full path of a key."""
        return f"{self.root}/{key}"

    def names(self, prefix: str) -> list[str]:
        """Last components of the names in the folder *prefix*; empty when there is none.

        A request for each thousand files, and one for each folder.

        Raises:
            StorageError: the listing failed.
        """
        folder = f"{prefix.rstrip('/')}/"
        return self._call(f"list {self.path(folder)}", lambda: self._names(folder))

    def read(self, key: str) -> Buffer | None:
        """The bytes of a small file; None when there is none.

        Raises:
            StorageError: the file cannot be read.
        """
        return self._get(key, 0, None)

    def read_range(self, key: str, start: int, end: int) -> Buffer | None:
        """The bytes ``[start, end)`` of a file, fewer where it ends before; None: no such file.

        Raises:
            StorageError: the file cannot be read.
        """
        return self._get(key, start, end)

    def close(self) -> None:
        """Release connections.  The files are not used afterwards."""
        self._result(self._store.close())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _get(self, key: str, start: int, end: int | None) -> Buffer | None:
        try:
            return self._call(f"read {self.path(key)}", lambda: self._store.get(key, start, end))
        except NotFoundError:
            return None

    async def _names(self, folder: str) -> list[str]:
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            after = await self._page(folder, after, found)
        return found

    async def _page(self, folder: str, after: str, found: list[str]) -> str | None:
        """Add the names behind *after*; returns where the next request starts, None: no more."""
        async for page in self._store.list(folder, start_after=after):
            for info in page.objects:
                name, slash, _ = info.key.removeprefix(folder).partition("/")
                found.append(name)
                if slash:
                    return f"{folder}{name}0"  # 0: the character behind the slash
        return None

    def _call(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return self._result(_with_retries(call))
        except NotFoundError:
            raise
        except (StoreError, TimeoutError) as error:
            said = error or "no answer in time"
            raise StorageError(f"cannot {what}: {said}") from error

    def _result(self, awaitable: Awaitable[T]) -> T:
        async def run() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()


async def _open(location: str) -> ObjectStore:
    return open_object_store(location)


async def _with_retries(call: Callable[[], Awaitable[T]]) -> T:
    pause_s = _FIRST_PAUSE_S
    for _ in range(TRIES - 1):
        try:
            return await call()
        except (NotFoundError, DeclinedError):
            raise
        except (StoreError, TimeoutError):
            await asyncio.sleep(pause_s)
            pause_s *= 2
    return await call()
