"""A cluster of real engines that loses its metadata store and its disks, and comes back."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.reading.reader import LogReader
from driftlog_agents.restore.partition_restores import RestoreOptions
from driftlog_agents.restore.report import RestoreReport
from driftlog_agents.restore.restorer import RestorePorts, Restorer
from driftlog_metadata.schema.codec import decode_cluster
from driftlog_metadata.schema.keys import CLUSTER_KEY
from driftlog_metadata.stores.store import MetadataStore
from driftlog_metadata.witness.witness import StoreWitness
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from tests.agents.log.lives import SETTINGS, Life, World, now_ms, values_of
from tests.support.clusters import AUTHOR
from tests.support.memory_store import MemoryMetadataStore


async def at_once(fn: Callable[..., Any], *args: Any) -> Any:
    """On the event loop."""
    return fn(*args)


async def nothing() -> None:
    """No agent of the old cluster runs."""


class Lost(World):
    """A cluster whose metadata store and disks go, and come back from the bucket."""

    async def begin(self) -> Life:
        """The first life of the cluster."""
        await self.bucket.put(layout.CLUSTER_KEY, [bucket_files.encode_cluster(AUTHOR)])
        for topic in self.topics.values():
            key = layout.topic_key(topic.name, topic.topic_id, 1)
            file = bucket_files.encode_topic(bucket_files.TopicFile(1, topic))
            await self.bucket.put(key, [file])
        return await self.start()

    def lose_everything(self) -> MemoryMetadataStore:
        """The metadata store and the disk are new; returns the store."""
        self.metadata = MemoryMetadataStore(lambda: int(now_ms()))
        self.platter = type(self.platter)()
        return self.metadata

    async def restore(
        self,
        metadata: MetadataStore | None = None,
        *,
        dry_run: bool = False,
        skip_damaged: bool = False,
        wait: Callable[[], Awaitable[None]] = nothing,
        from_id: str | None = None,
    ) -> RestoreReport:
        """A restore of the cluster that the bucket has."""
        if from_id is None:
            _, body = await newest_cluster_file(self.bucket)
            from_id = bucket_files.decode_cluster(body).cluster_id
        ports = RestorePorts(
            metadata=metadata or self.metadata,
            objects=self.bucket,
            offload=at_once,
            spool=self.spool,
            rng=Random(self.rng.getrandbits(64)),
            now_ms=now_ms,
            wait=wait,
            progress=lambda what, count: None,
        )
        options = RestoreOptions(dry_run=dry_run, skip_damaged=skip_damaged)
        return await Restorer(ports, options).run(from_id)

    async def come_back(self) -> Life:
        """A process of the restored cluster."""
        kv = await self.metadata.get(CLUSTER_KEY)
        assert kv is not None
        life = Life(self, SETTINGS, self.metadata, StoreWitness(now_ms, kv.value))
        await life.ready()
        return life

    async def cluster_id(self) -> str:
        """By the metadata store."""
        kv = await self.metadata.get(CLUSTER_KEY)
        assert kv is not None
        return decode_cluster(kv.value).cluster_id


async def records(life: Life, partition: int = 0) -> dict[int, bytes]:
    """Every record of a partition, by offset."""
    log = life.log(partition)
    reader = LogReader(
        store=life.world.bucket,
        offload=at_once,
        manifests=life.engine,
        now_ms=now_ms,
        settings=ReadSettings(),
    )
    found: dict[int, bytes] = {}
    offset = log.log_start
    while offset < log.high_watermark:
        batches = b"".join(map(bytes, await reader.read(log, offset, 1_000_000, zstd=True)))
        assert batches, f"nothing at {offset}"
        while batches:
            size = 12 + int.from_bytes(batches[8:12], "big")
            for at, _, value in values_of(batches[:size]):
                found[at] = value
            offset = int.from_bytes(batches[:8], "big") + int.from_bytes(batches[23:27], "big") + 1
            batches = batches[size:]
    return found


async def flip(world: Lost, key: str, at: int) -> None:
    """Change one byte of an object."""
    body = bytearray(await world.bucket.get(key))
    body[at] ^= 255
    await world.bucket.delete([key])
    await world.bucket.put(key, [bytes(body)])
