"""Ports of an agent that tests share: no sockets, a fixed identity, a spool in memory."""

import contextlib
import io
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from driftlog_agents.configs.limits import Limits
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_agents.network.server import Dispatch
from driftlog_metadata.schema.codec import decode_cluster
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import CLUSTER_KEY
from driftlog_metadata.schema.model import Cluster, Listener
from driftlog_metadata.stores.store import CreateRevisionIs, MetadataStore
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from driftlog_tiering.stores.object_store import AlreadyExistsError, ObjectStore
from tests.support.clusters import MARK


@dataclass(frozen=True, slots=True)
class FixedIdentity:
    """An `Identity` that needs no time; stores without a cluster get ours."""

    number: int
    objects: ObjectStore

    async def join(
        self, metadata: MetadataStore, unknown_keys: UnknownKeys
    ) -> tuple[Cluster, int, Grace]:
        await metadata.txn((CreateRevisionIs(CLUSTER_KEY, 0),), (MARK,))
        kv = await metadata.get(CLUSTER_KEY)
        assert kv is not None
        cluster = decode_cluster(kv.value)
        with contextlib.suppress(AlreadyExistsError):
            await self.objects.create(layout.CLUSTER_KEY, [encode_cluster(cluster)])
        return cluster, self.number, Grace()


@dataclass(slots=True)
class NoServer:
    """A `RequestServer` that accepts nobody: tests call handlers themselves."""

    listeners: tuple[Listener, ...]

    async def bind(self) -> tuple[Listener, ...]:
        return self.listeners

    def start(self, dispatch: Dispatch) -> None:
        pass

    def limit_connections(self, most: int, limits: Limits) -> None:
        pass

    def hold_producers(self, held: bool) -> None:
        pass

    async def run(self) -> None:
        pass

    async def stop(self) -> None:
        pass


@dataclass(slots=True)
class _Spool:
    file: io.BytesIO = field(default_factory=io.BytesIO)

    def body(self) -> list[bytes]:
        return [self.file.getvalue()]


@contextlib.contextmanager
def spool() -> Iterator[_Spool]:
    """Of segments, in memory."""
    yield _Spool()


def monotonic_ms() -> float:
    """A clock that never goes back."""
    return time.monotonic() * 1000


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
