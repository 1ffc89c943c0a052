"""Decides which producer ids are given out next: above the store's end, and above ids in the log.

    end of the last block ──up to a multiple of a thousand──▶ the next block
    ids seen in the log ──at or above that end, and credible──▶ the end is raised above them

1. A block is a thousand ids that begin at a multiple of a thousand, so two blocks overlap only if
   they begin at the same id.
2. An id that the store has not given out came from a store that was lost.  If a new producer got
   that id again, its batches would count as duplicates of the old producer's.  Other signs of a
   lost store raise the store's end as well: ids were given out that no log shows here (yet).
3. An id that is not credible hides no credible one: the largest id of each range is kept.  Such an
   id costs no read either: the end that was read last shows that it is not credible.  Each read of
   the end judges it again.

Pure.
"""

from typing import Final

from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.codec import (
    decode_at,
    decode_producer_id_block,
    encode_producer_id_block,
)
from driftlog_metadata.schema.keys import PRODUCER_IDS_KEY
from driftlog_metadata.schema.model import ProducerIdBlock
from driftlog_metadata.stores.store import Get, KeyValue, ModRevisionIs, Put
from driftlog_metadata.transactions.session_transactions import Txn
from driftlog_tiering.batches.producers import ProducerStates

BLOCK_SIZE: Final = 1_000
"""Ids of one block: ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE.  Never changed: see the module."""

_INT64_MAX: Final = 2**63 - 1

SKIPPED: Final = 2**32
"""How far above the largest id seen the store's end is raised: the store may have given out ids
there whose producers wrote nothing that is read here.  More than an agent gives out in an hour at a
million a second; the id space has 2^31 times as many."""

_RANGE_BITS: Final = 40
"""Ids are judged by ranges of 2^40.  Only ids up to the range after the one of the store's end are
credible: clients choose what they send, and a client that sends 2^63 − 1 must not use up all ids.
A range has more ids than a store can be behind by."""

_RANGES: Final = 1_000
"""Ranges of which the largest id is kept: those nearest to the store's end."""


def block_after(end: int, size: int, node_id: int) -> ProducerIdBlock:
    """The next *size* ids, where all below *end* are given out.

    Raises:
        RefusedError: UNKNOWN_SERVER_ERROR: all 2^63 are used up.
    """
    first = -(-end // BLOCK_SIZE) * BLOCK_SIZE
    if first > _INT64_MAX - size:
        raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    return ProducerIdBlock(first_producer_id=first, size=size, node_id=node_id)


def end_of(kv: KeyValue) -> int:
    """The end of the last block that the store gave out.

    Raises:
        CorruptError: the key cannot be read.
    """
    last = decode_at(kv.key, kv.value, decode_producer_id_block)
    return last.first_producer_id + last.size


def replace(kv: KeyValue | None, block: ProducerIdBlock) -> Txn:
    """Makes *block* the last one; if the key has changed, the transaction reads it."""
    return Txn(
        compares=(ModRevisionIs(PRODUCER_IDS_KEY, kv.mod_revision if kv else 0),),
        then=(Put(PRODUCER_IDS_KEY, encode_producer_id_block(block)),),
        otherwise=(Get(PRODUCER_IDS_KEY),),
    )


class SeenProducerIds:
    """The largest producer ids that a session has seen in the log: new ids are above them."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}
        """Range → the largest id seen in it, unless it is below the end."""
        self._end = 0
        """The store's end, when it was read last."""
        self._was_read = False
        self._went_back = False
        self._was_raised = False
        self.settled = True
        """Nothing was seen that may require a raise of the store's end."""

    def saw(self, producer_id: int) -> None:
        """Note an id in the log; −1: none.  No id is given out before all is `settled`."""
        if producer_id < self._end or producer_id < 0:
            return
        kind = producer_id >> _RANGE_BITS
        if producer_id <= self._above.get(kind, -1):
            return
        self._above[kind] = producer_id
        if len(self._above) > _RANGES:
            del self._above[max(self._above)]
        if not self._was_read or self._is_credible(producer_id):
            self.settled = False

    def saw_states(self, states: ProducerStates) -> None:
        """As `saw`, for each id of *states*."""
        for producer_id in states.ids_from(self._end):
            self.saw(producer_id)

    def saw_a_lost_store(self) -> None:
        """Note that the bucket has more than the metadata store knows; as `saw`, for unknown ids.

        Counts once per session: later signs are of the same store.
        """
        if not self._went_back:
            self._went_back = True
            self.settled = False

    def read_end(self, end: int) -> list[int]:
        """The store's end was read; returns the ids at or above it that are not credible."""
        self._was_read, self._end = True, end
        self._above = {kind: seen for kind, seen in self._above.items() if seen >= end}
        return [seen for seen in self._above.values() if not self._is_credible(seen)]

    def above_end(self) -> int | None:
        """The id above which the store's end must be raised, by the last `read_end`; None: it is
        high enough, and all is settled."""
        seen = max(filter(self._is_credible, self._above.values()), default=-1)
        if self._went_back and not self._was_raised and self._end < _INT64_MAX - SKIPPED:
            seen = max(seen, self._end)
        if seen < 0:
            self.settled = True
            return None
        return seen

    def raised(self) -> None:
        """The store's end was raised; it must be read again."""
        self._was_raised = True

    def _is_credible(self, producer_id: int) -> bool:
        near = producer_id >> _RANGE_BITS <= (self._end >> _RANGE_BITS) + 1
        return near and producer_id < _INT64_MAX - SKIPPED
