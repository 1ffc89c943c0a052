"""Work on the agents' object store from a thread that may have an event loop already: `with_store`.

A notebook's thread has one.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from driftlog_metadata.stores.errors import CorruptError, StoreError
from driftlog_spark_reader.common.errors import StorageError
from driftlog_tiering.stores.locations import open_object_store
from driftlog_tiering.stores.object_store import ObjectStore

T = TypeVar("T")


def with_store(location: str, main: Callable[[ObjectStore], Awaitable[T]]) -> T:
    """What *main* returns, in an event loop of its own.

    Raises:
        StorageError: the bucket does not answer, or does not take it.
    """

    async def run() -> T:
        store = open_object_store(location)
        try:
            return await main(store)
        finally:
            await store.close()

    with ThreadPoolExecutor(1, thread_name_prefix="object store") as thread:
        try:
            return thread.submit(lambda: asyncio.run(run())).result()
        except (StoreError, CorruptError, TimeoutError, ValueError) as error:
            raise StorageError(
                f"cannot write to {location}: {error or 'no answer in time'}"
            ) from error
