"""The hand-written Produce answer against the codec."""

import pytest

from driftlog_agents.handlers.produce.answers import encode_success
from driftlog_agents.protocol.messages.produce import (
    API,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)


@pytest.mark.parametrize("version", range(API.served.start, 13))
@pytest.mark.parametrize("topic", ["t", "a" * 126, "a" * 127, "a" * 249])
def test_the_quick_answer_is_the_codec_s(version: int, topic: str) -> None:
    """
    What is written by hand is what the definition says, byte for byte, in every version.
    """
    answer = PartitionProduceResponse(
        index=7, base_offset=1 << 40, log_append_time_ms=-1, log_start_offset=3
    )
    response = ProduceResponse(
        responses=[TopicProduceResponse(name=topic, partition_responses=[answer])]
    )

    expected = API.encode_response(version, 99, response)

    assert expected == encode_success(version, 99, topic, 7, 1 << 40, -1, 3)
