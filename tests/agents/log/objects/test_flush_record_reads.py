"""If this fails, what is read of flush records and topics stalls the event loop."""

import asyncio
import itertools
from typing import Any, cast
from uuid import UUID

from driftlog_agents.foundation.loop_slices import SLICE_S, measure_by
from driftlog_agents.log.objects.flush_record_reads import FlushRecordReads
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import encode_topic
from driftlog_metadata.schema.keys import TOPICS_PREFIX, topic_key
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.store import KeyValue

TOPICS = 1_000


class Session:
    """Of a metadata store with very many topics."""

    async def read_prefix(self, prefix: str) -> list[KeyValue]:
        """All of them."""
        assert prefix == TOPICS_PREFIX
        topics = [
            Topic(name=f"t{number}", topic_id=UUID(int=number), partitions=1)
            for number in range(TOPICS)
        ]
        return [
            KeyValue(topic_key(topic.name), encode_topic(topic), create_revision=1, mod_revision=1)
            for topic in topics
        ]


async def test_very_many_topics_are_decoded_in_slices() -> None:
    """
    A topic is deleted: 10,000 others took 0.3 s of the event loop.
    """
    clock = itertools.count(0.0, SLICE_S / 100)
    measure_by(asyncio.get_running_loop(), lambda: next(clock))
    reads = FlushRecordReads(cast(Any, Session()), cast(Any, None), UnknownKeys())
    reading = asyncio.create_task(reads.topic_ids())
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)

    assert {UUID(int=number) for number in range(TOPICS)} == reading.result()
    assert turns >= TOPICS / 100
