"""Blocks of producer ids, unique in the cluster, from the metadata store.

    /producer_ids: its end ──▶ our block's start        nobody ever gets one of ours

Source: org.apache.kafka.coordinator.transaction.RPCProducerIdManager, KIP-730.

Shell.
"""

from typing import Final

from driftlog_agents.log.session import Session
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.codec import (
    decode_at,
    decode_producer_id_block,
    encode_producer_id_block,
)
from driftlog_metadata.keys import PRODUCER_IDS_KEY
from driftlog_metadata.model import ProducerIdBlock
from driftlog_metadata.store import Get, ModRevisionIs, Put
from driftlog_metadata.transactions import Txn

_INT64_MAX: Final = 2**63 - 1


async def next_block(session: Session, node_id: int, size: int) -> ProducerIdBlock:
    """The next *size* ids.  After a lost answer some may be skipped, and none is taken twice.

    Raises:
        RefusedError: UNKNOWN_SERVER_ERROR: all 2^63 are used up.
        FencedError: the session ended first.
    """
    kv = await session.read(PRODUCER_IDS_KEY)
    while True:
        first = 0
        if kv is not None:
            last = decode_at(kv.key, kv.value, decode_producer_id_block)
            first = last.first_producer_id + last.size
        if first > _INT64_MAX - size:
            raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
        block = ProducerIdBlock(first_producer_id=first, size=size, node_id=node_id)
        result = await session.transact(
            Txn(
                compares=(ModRevisionIs(PRODUCER_IDS_KEY, kv.mod_revision if kv else 0),),
                then=(Put(PRODUCER_IDS_KEY, encode_producer_id_block(block)),),
                otherwise=(Get(PRODUCER_IDS_KEY),),
            )
        )
        if result.succeeded:
            return block
        kv = result.reads[0][0] if result.reads[0] else None
