"""Probes of the bucket and of the disk: the work of a flush and of a buffer file on a small scale.

A probe puts an object and reads it back; it writes a file and syncs it.  The object's key has a
session id that never exists (``probe-{node_id}``): no record names it, and the collector deletes it
after its grace period.

Shell.
"""

import asyncio
from random import Random
from typing import Final

from driftlog_agents.log.local.disk import AgentDisk, BufferFile
from driftlog_agents.log.objects.bucket_probe import probe_bucket
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.stores.object_store import ObjectStore

_DISK_S: Final = 10.0
"""Timeout of a probe of the disk."""

_FOLDER: Final = "probe"
"""Folder of a probe's file, beside the sessions' folders; no session has this name."""

_BODY: Final = b"driftlog: can this agent write to this bucket, and read what it wrote?\n"


class WriteProbe:
    """See the module.  Each probe returns its error; None: it succeeded.

    Args:
        node_id: names the object.
        offload: runs disk operations off the event loop.
    """

    def __init__(
        self,
        *,
        node_id: int,
        objects: ObjectStore,
        disk: AgentDisk,
        rng: Random,
        offload: Offload,
    ) -> None:
        self._node_id = node_id
        self._objects = objects
        self._disk = disk
        self._rng = rng
        self._offload = offload
        self._writing: asyncio.Future[None] | None = None

    async def bucket_and_disk(self) -> str | None:
        """First the bucket; the disk only if that succeeded."""
        return await self.bucket() or await self.disk()

    async def bucket(self) -> str | None:
        """PUT and GET."""
        nonce = f"{self._rng.getrandbits(64):016x}"
        return await probe_bucket(self._objects, self._node_id, nonce)

    async def disk(self) -> str | None:
        """Write, sync and read."""
        if self._writing is None or self._writing.done():
            # In threads, and one at a time: a write to a broken disk may never return.
            self._writing = asyncio.ensure_future(self._write())
        try:
            async with asyncio.timeout(_DISK_S):
                await asyncio.shield(self._writing)
        except UnavailableError as error:
            return f"the disk: {error}"
        except TimeoutError:
            return f"the disk: nothing was written in {_DISK_S:g} s"
        return None

    async def _write(self) -> None:
        await self._disk.remove_session(_FOLDER)
        await self._disk.create_session(_FOLDER)
        file, position = await self._offload(self._begin_file)
        try:
            await file.sync()
            if await self._offload(file.read, position, len(_BODY)) != _BODY:
                raise UnavailableError("it does not give back what was written")
        finally:
            await self._disk.remove_session(_FOLDER)

    def _begin_file(self) -> tuple[BufferFile, int]:
        file = self._disk.create_file(_FOLDER, 1)
        return file, file.append([_BODY])
