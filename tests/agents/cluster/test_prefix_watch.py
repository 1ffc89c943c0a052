"""Whoever follows a prefix has its newest values, however much was written at once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from driftlog_agents.cluster.prefix_watch import follow_prefix
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import Delete, KeyValue, Put, PutEvent, WatchEvent
from tests.agents.network.serving import eventually


async def test_a_watch_that_falls_behind_the_history_reads_again_and_goes_on(
    tmp_path: Path,
) -> None:
    """
    One commit of the embedded store is larger than its history: a key that was deleted in it stays
    in the agent's view for good if the watch continues behind what is gone.
    """
    store = await SqliteMetadataStore.open(
        tmp_path / "metadata.db", lambda: 1_700_000_000_000, history_bytes=4_000
    )
    await store.txn([], [Put("/k/gone", b"")])
    view: dict[str, bytes] = {}
    reads = 0

    async def reset(_: int, kvs: list[KeyValue]) -> None:
        nonlocal reads
        reads += 1
        view.clear()
        view.update({kv.key: kv.value for kv in kvs})

    def apply(events: Sequence[WatchEvent]) -> None:
        for event in events:
            if isinstance(event, PutEvent):
                view[event.kv.key] = event.kv.value
            else:
                del view[event.key]

    following = asyncio.create_task(follow_prefix(store, "/k/", reset, apply))
    await eventually(lambda: "/k/gone" in view)
    await asyncio.gather(
        store.txn([], [Delete("/k/gone")]),
        *(store.txn([], [Put(f"/k/{n % 5}", b"%d" % n * 500)]) for n in range(50)),
    )
    await eventually(lambda: len(view) == 5)
    assert 2 <= reads
    await store.txn([], [Put("/k/last", b"")])
    await eventually(lambda: "/k/last" in view)
    assert {kv.key: kv.value for kv in (await store.get_prefix("/k/"))[1]} == view
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await store.close()
