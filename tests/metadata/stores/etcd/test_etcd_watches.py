"""A watch on etcd ends, whatever holds up its reader."""

import asyncio
import contextlib
from typing import Any, cast

from driftlog_metadata.stores.etcd.etcd_client import EtcdClient
from driftlog_metadata.stores.etcd.etcd_watches import EtcdWatch


class Stream:
    """Nothing comes on it."""

    def __init__(self) -> None:
        self.cancelled = False

    async def read(self) -> Any:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        self.cancelled = True


class DeafClient:
    """An `EtcdClient` that opens streams when it is let, and forgets that it was cancelled."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let = asyncio.Event()
        self.streams: list[Stream] = []

    async def run(self, *_args: object) -> tuple[Stream, int]:
        self.asked.set()
        while not self.let.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let.wait()
        self.streams.append(Stream())
        return self.streams[-1], 1


async def test_what_does_not_heed_its_end_does_not_hold_up_the_watchs() -> None:
    """
    The watch is over after a while all the same; when it does, its reader is told, and what it
    opened is closed.
    """
    client = DeafClient()
    watch = EtcdWatch(cast("EtcdClient", client), "/w/", 1, lambda _watch: None, close_s=0.05)
    reading = asyncio.ensure_future(anext(watch))
    await client.asked.wait()

    closing = asyncio.ensure_future(watch.aclose())
    ended, _ = await asyncio.wait([closing], timeout=2)
    client.let.set()
    await asyncio.wait([reading, closing], timeout=2)

    assert {closing} == ended
    assert isinstance(reading.exception(), StopAsyncIteration)
    assert [True] == [stream.cancelled for stream in client.streams]
