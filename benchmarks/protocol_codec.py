"""The cost of the protocol's codec: microseconds of CPU for each message, best of several runs.

    python -m benchmarks.protocol_codec [--seconds 0.2]

The first row of each kind is the header, which every request has.  Messages are those of the
hot path: one topic and partition (librdkafka and sarama send no more in a Produce request),
and 100 partitions for messages that grow with them.

Shell.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from driftlog_agents.protocol.messages import api_versions, fetch, metadata, produce
from driftlog_agents.protocol.requests.registry import API, decode_request_header

TOPIC_ID = UUID(int=0x0123_4567_89AB_4CDE_8123_4567_89AB_CDEF)
REPEATS = 7


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.protocol_codec")
    parser.add_argument("--seconds", type=float, default=0.2, help="per run; seven runs a row")
    seconds = parser.parse_args().seconds
    print(f"{'operation':<52} {'µs':>8}")
    for name, run in operations().items():
        print(f"{name:<52} {microseconds(run, seconds):>8.2f}")


def operations() -> dict[str, Callable[[], Any]]:
    """The operations, by name."""
    measured: dict[str, Callable[[], Any]] = {}
    for version in (7, 9):
        for partitions, records_bytes in ((1, 200), (1, 1 << 20), (100, 1000)):
            frame = memoryview(bytearray(produce_frame(version, partitions, records_bytes)))
            offset = decode_request_header(frame).body_offset
            what = f"Produce v{version}, {partitions} partitions of {records_bytes} B"
            if records_bytes == 200:
                measured[f"read header, v{version}"] = partial(decode_request_header, frame)
            measured[f"read {what}"] = partial(produce.API.decode_request, version, frame, offset)
        for partitions in (1, 100):
            name = f"write Produce answer v{version}, {partitions} partitions"
            answer = produce_response(partitions)
            measured[name] = partial(produce.API.encode_response, version, 7, answer)
    for version in (11, 12, 17):
        for partitions in (1, 100):
            what = f"Fetch v{version}, {partitions} partitions"
            frame = memoryview(fetch_frame(version, partitions))
            offset = decode_request_header(frame).body_offset
            measured[f"read {what}"] = partial(fetch.API.decode_request, version, frame, offset)
            fetched = fetch_response(partitions)
            measured[f"write answer to {what} of 1 MiB"] = partial(
                fetch.API.encode_response_parts, version, 7, fetched
            )
    described = metadata_response(100)
    measured["write Metadata answer v12, 100 partitions"] = partial(
        metadata.API.encode_response, 12, 7, described
    )
    versions = api_versions.ApiVersionsResponse(
        api_keys=[
            api_versions.ApiVersion(
                api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[-1]
            )
            for api in API.values()
            if api.served
        ]
    )
    measured["write ApiVersions answer v3"] = partial(
        api_versions.API.encode_response, 3, 7, versions
    )
    return measured


def microseconds(run: Callable[[], Any], seconds: float) -> float:
    """CPU time of one call: the best of several runs, because other processes share the machine."""
    run()
    best = float("inf")
    for _ in range(REPEATS):
        calls = 0
        began = time.process_time()
        while (spent := time.process_time() - began) < seconds / REPEATS:
            for _ in range(100):
                run()
            calls += 100
        best = min(best, spent / calls)
    return best * 1e6


def produce_frame(version: int, partitions: int, records_bytes: int) -> bytes:
    """A Produce request without its size."""
    return produce.API.encode_request(
        version,
        7,
        "rdkafka",
        produce.ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                produce.TopicProduceData(
                    name="orders",
                    partition_data=[
                        produce.PartitionProduceData(
                            index=index, records=memoryview(bytes(records_bytes))
                        )
                        for index in range(partitions)
                    ],
                )
            ],
        ),
    )[4:]


def produce_response(partitions: int) -> produce.ProduceResponse:
    """A Produce response in which every partition succeeded."""
    return produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                name="orders",
                partition_responses=[
                    produce.PartitionProduceResponse(index=index, base_offset=1 << 40)
                    for index in range(partitions)
                ],
            )
        ]
    )


def fetch_frame(version: int, partitions: int) -> bytes:
    """A Fetch request without its size."""
    return fetch.API.encode_request(
        version,
        7,
        "rdkafka",
        fetch.FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            topics=[
                fetch.FetchTopic(
                    topic="orders",
                    topic_id=TOPIC_ID,
                    partitions=[
                        fetch.FetchPartition(partition=index, partition_max_bytes=1 << 20)
                        for index in range(partitions)
                    ],
                )
            ],
        ),
    )[4:]


def fetch_response(partitions: int) -> fetch.FetchResponse:
    """A Fetch response with 1 MiB from each partition."""
    records = memoryview(bytes(1 << 20))
    return fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(
                topic="orders",
                topic_id=TOPIC_ID,
                partitions=[
                    fetch.PartitionData(
                        partition_index=index,
                        high_watermark=1 << 40,
                        last_stable_offset=1 << 40,
                        log_start_offset=0,
                        aborted_transactions=None,
                        records=records,
                    )
                    for index in range(partitions)
                ],
            )
        ]
    )


def metadata_response(partitions: int) -> metadata.MetadataResponse:
    """A Metadata response of three brokers and a topic."""
    return metadata.MetadataResponse(
        brokers=[
            metadata.MetadataResponseBroker(node_id=node, host=f"agent-{node}", port=9092)
            for node in range(3)
        ],
        cluster_id="driftlog-cluster",
        controller_id=0,
        topics=[
            metadata.MetadataResponseTopic(
                name="orders",
                topic_id=TOPIC_ID,
                partitions=[
                    metadata.MetadataResponsePartition(
                        partition_index=index,
                        leader_id=index % 3,
                        leader_epoch=1,
                        replica_nodes=[0, 1, 2],
                        isr_nodes=[0, 1, 2],
                    )
                    for index in range(partitions)
                ],
            )
        ],
    )


if __name__ == "__main__":
    main()
