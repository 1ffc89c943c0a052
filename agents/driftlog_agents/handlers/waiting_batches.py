"""Batches that wait to be admitted: for a thread that rewrites them, or for their partition.

    batch ──▶ is there room? ──▶ counted ──▶ rewritten, the partition is loaded … ──▶ admitted
                    │               └─ its connection is not read while 1 MiB of its own waits
                    └─▶ refused: clients send it again, and those behind it

So a topic that is slow to write to has nobody else wait.

Shell.
"""

from typing import Final

from driftlog_agents.broker import Broker
from driftlog_agents.log.engine import Engine
from driftlog_agents.log.flush import Checked
from driftlog_agents.log.partition import PartitionLog
from driftlog_agents.network.connection import Connection

_BESIDE_BYTES: Final = 1_024
"""What a batch holds beside its bytes."""

_MOST: Final = "driftlog.max.waiting.batch.bytes"

_LITTLE_BYTES: Final = 256 * 1024
"""A batch that is smaller keeps no frame in memory, which may be much larger."""


def own_memory(records: memoryview) -> memoryview:
    """The same bytes, where they may wait."""
    return memoryview(bytearray(records)) if len(records) < _LITTLE_BYTES else records


class WaitingBatches:
    """Counts those of one agent."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._most_bytes = broker.settings.limits.driftlog_max_waiting_batch_bytes
        self.held_bytes = 0

    def add(
        self,
        engine: Engine,
        log: PartitionLog,
        checked: Checked,
        size_bytes: int,
        connection: Connection,
    ) -> None:
        """A batch is about to wait.

        Raises:
            RefusedError: too many do, or one before it was refused for that.
        """
        full, size_bytes = None, size_bytes + _BESIDE_BYTES
        if self.held_bytes and self.held_bytes + size_bytes > self._most_bytes:
            self._broker.refusals.count(_MOST)
            full = f"{self.held_bytes} bytes of batches wait already ({_MOST})"
        engine.admission.queue(log, checked[2], checked[4], full=full)
        self.held_bytes += size_bytes
        connection.batches_wait(size_bytes)

    def remove(self, size_bytes: int, connection: Connection) -> None:
        """A batch waits no longer."""
        self.held_bytes -= size_bytes + _BESIDE_BYTES
        connection.batches_wait(-size_bytes - _BESIDE_BYTES)
