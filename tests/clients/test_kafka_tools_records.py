"""Kafka's own tools that write and read, against Apache Kafka and against driftlog: see
test_kafka_tools.py.

Shell.
"""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from tests.clients.tool_comparison import Pair, step, steps_of
from tests.support.kafka_peer import kafka_jars

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("kafka_tools"),
]

ALL_OF_IT: Final = " ".join(
    f"--formatter-property print.{what}=true"
    for what in ("timestamp", "key", "offset", "partition", "headers", "epoch", "value")
)


def test_console_clients(pair: Pair) -> None:
    """
    What the console producer writes, keys, headers and nulls too, the console consumer prints,
    from where it is told to and as far.
    """
    keyed = "--reader-property parse.key=true --reader-property key.separator=:"
    headed = "--reader-property parse.headers=true --reader-property parse.key=true"
    read = "kafka-console-consumer --topic console"
    pair.compare(
        [
            step("kafka-topics --create --topic console"),
            step("kafka-console-producer --topic console", stdin="a\nb\n\n"),
            step(f"kafka-console-producer --topic console {keyed}", stdin="k1:v1\nk2:\n:v3\nbad\n"),
            step(
                f"kafka-console-producer --topic console {keyed} "
                "--reader-property null.marker=NULL --compression-codec zstd",
                stdin="k3:NULL\nNULL:NULL\n",
            ),
            step(
                f"kafka-console-producer --topic console {headed} --sync",
                stdin="h1:v,h2:w\tk\tv\nh1:\tk\tv\n",
            ),
            step(
                "kafka-console-producer --topic console --command-property acks=1 "
                "--command-property enable.idempotence=false",
                stdin="once\n",
            ),
            step(f"{read} --from-beginning --max-messages 11 {ALL_OF_IT}"),
            step(f"{read} --partition 0 --offset earliest --max-messages 11 {ALL_OF_IT}"),
            *steps_of(f"""
                {read} --partition 0 --offset 3 --max-messages 2
                {read} --partition 0 --offset 3 --max-messages 2 --isolation-level read_committed
                {read} --partition 0 --offset 5 --timeout-ms 3000
                {read} --partition 0 --offset latest --timeout-ms 2000
                {read} --partition 1 --offset 0 --timeout-ms 2000
                {read} --partition 0 --offset 0 --max-messages 1 --formatter-property null.literal=-
                {read} --include con.* --from-beginning --max-messages 3 --group g-include
                kafka-consumer-groups --delete --group g-include
                kafka-console-consumer --from-beginning
                kafka-topics --delete --topic console
            """),
        ]
    )


def test_offsets_and_sizes(pair: Pair, tmp_path: Path) -> None:
    """
    kafka-get-offsets finds every kind of offset, kafka-delete-records moves the log's start, and
    kafka-log-dirs names every partition.
    """

    def deletion(name: str, *offsets: tuple[str, int, int]) -> Path:
        file = tmp_path / f"{name}.json"
        partitions = [{"topic": t, "partition": p, "offset": o} for t, p, o in offsets]
        file.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return file

    some = deletion("some", ("counted", 0, 2), ("counted", 1, 0))
    rest = deletion("rest", ("counted", 0, -1))
    wrong = deletion("wrong", ("counted", 0, 99), ("counted", 1, 0))
    nowhere = deletion("nowhere", ("counted", 7, 0), ("none", 0, 0))
    patience = tmp_path / "patience.properties"
    patience.write_text("default.api.timeout.ms=3000\nrequest.timeout.ms=3000\n")
    times = (
        *("latest", "earliest", "earliest-local", "latest-tiered", "earliest-pending-upload"),
        *("-1", "-2", "-4", "-5", "-6", "0", "9999999999999", "soon"),
    )
    pair.compare(
        [
            step("kafka-topics --create --topic counted --partitions 2"),
            step("kafka-get-offsets --topic counted --time max-timestamp"),
            step(
                "kafka-console-producer --topic counted --sync "
                "--command-property partitioner.ignore.keys=false --reader-property parse.key=true",
                stdin="".join(f"key {n}\tvalue\n" for n in range(7)),
            ),
            *(step(f"kafka-get-offsets --topic counted --time {time}") for time in times),
            *steps_of("""
                kafka-get-offsets --topic counted
                kafka-get-offsets --topic c.*ed --partitions 1
                kafka-get-offsets --topic-partitions counted:0-1
                kafka-get-offsets --topic-partitions counted:1-
                kafka-get-offsets --topic-partitions none:0
                kafka-get-offsets --topic none
                kafka-get-offsets --exclude-internal-topics
            """),
            step(f"kafka-delete-records --offset-json-file {some}", unordered=True),
            step(f"kafka-delete-records --offset-json-file {wrong}", unordered=True),
            step(
                f"kafka-delete-records --offset-json-file {nowhere} --command-config {patience}",
                unordered=True,
            ),
            step("kafka-get-offsets --topic counted --time earliest"),
            step(
                "kafka-console-consumer --topic counted --partition 0 --offset 0 --timeout-ms 2000"
            ),
            step(f"kafka-delete-records --offset-json-file {rest}"),
            step("kafka-get-offsets --topic counted --time earliest"),
            step("kafka-get-offsets --topic counted --time latest"),
            step("kafka-topics --create --topic empty --partitions 3"),
            *steps_of("""
                kafka-log-dirs --describe --topic-list empty
                kafka-log-dirs --describe --topic-list empty,none --broker-list 1
                kafka-log-dirs --describe --broker-list 1,7
                kafka-topics --delete --topic counted|empty
            """),
        ]
    )


def test_verifiable_clients(pair: Pair) -> None:
    """
    The verifiable producer and consumer, which Kafka's own system tests use, tell of the same
    records, offsets and assignments.
    """
    write = "kafka-verifiable-producer --topic verified"
    pair.compare(
        [
            step("kafka-topics --create --topic verified"),
            step(f"{write} --max-messages 5 --throughput 100"),
            step(f"{write} --max-messages 3 --throughput 100 --acks 1 --value-prefix 7"),
            step(f"{write} --max-messages 3 --throughput 100 --repeating-keys 2"),
            step(f"{write} --max-messages 1 --throughput 100 --message-create-time 1600000000000"),
            step("kafka-get-offsets --topic verified --time 1600000000000"),
            step(
                "kafka-verifiable-consumer --topic verified --group-id g-verified "
                "--reset-policy earliest --max-messages 12 --verbose",
                reads=False,
            ),
            step("kafka-consumer-groups --describe --group g-verified --offsets"),
            step("kafka-consumer-groups --delete --group g-verified"),
            step("kafka-topics --delete --topic verified"),
        ]
    )


def test_compatibility(pair: Pair) -> None:
    """
    Kafka's own test of old brokers finds what it finds in Kafka: everything.
    """
    has = " ".join(
        f"--{what} true"
        for what in (
            "offsets-for-times-supported",
            "cluster-id-supported",
            "create-topics-supported",
            "describe-acls-supported",
            "describe-configs-supported",
            "idempotent-producer-supported",
        )
    )
    pair.compare(
        [
            step("kafka-topics --create --topic compatible"),
            step(
                f"client-compatibility-test --topic compatible --num-cluster-nodes 1 {has} "
                "--expect-record-too-large-exception false",
                reads=False,
            ),
            step("kafka-topics --delete --topic compatible"),
        ]
    )


def test_performance_tools(pair: Pair) -> None:
    """
    They run, and count the same records; how fast is not compared here.
    """
    pair.compare([step("kafka-topics --create --topic perf")])
    wrote = pair.run(
        "kafka-producer-perf-test --bootstrap-server @ --topic perf --num-records 2000 "
        "--record-size 100 --throughput -1 --print-metrics"
    )
    read = pair.run(
        "kafka-consumer-perf-test --bootstrap-server @ --topic perf --num-records 2000 "
        "--group g-perf --timeout 30000"
    )
    pair.compare(
        [
            step("kafka-get-offsets --topic perf"),
            step("kafka-consumer-groups --delete --group g-perf"),
            step("kafka-topics --delete --topic perf"),
        ]
    )

    for said in wrote:
        assert (0, "") == (said.status, said.err)
        assert re.search(r"(?m)^2000 records sent, .* ms 99\.9th\.$", said.out)
        assert re.search(
            r"record-send-total:\{client-id=perf-producer-client\} +: 2000\.000", said.out
        )
    for said in read:
        assert (0, "") == (said.status, said.err)
        names, numbers = (line.split(", ") for line in said.out.splitlines())
        counted = dict(zip(names, numbers, strict=True))
        assert ("2000", "0.1907") == (
            counted["data.consumed.in.nMsg"],
            counted["data.consumed.in.MB"],
        )
