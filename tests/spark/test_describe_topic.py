"""`describe_topic` tells what manifests say of a topic, and nothing that they do not say."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from driftlog import DriftlogError
from driftlog_spark_reader import (
    DeletedTopicError,
    UnknownTopicError,
    describe_topic,
    read_topic,
)
from driftlog_tiering.formats.manifest import SetLogStart
from tests.support.driftlog_process import DriftlogProcess
from tests.support.s3_servers import S3Server
from tests.support.sealed_topics import Message, SealedTopic

# One Spark for all workers of pytest-xdist; on a busy machine it takes a minute to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

T0 = 1_700_000_000_000


def message(offset: int) -> Message:
    """One second after that of the offset before."""
    return Message(T0 + 1_000 * offset, b"k", b"v")


def moment(offset: int) -> datetime:
    """The timestamp of the record there."""
    return datetime.fromtimestamp(T0 // 1_000, UTC) + timedelta(seconds=offset)


def flights(location: str) -> SealedTopic:
    """Log start in a file without gaps, a raw segment, log start in a file with gaps, nothing."""
    topic = SealedTopic(location, "flights", partitions=4).create()
    for base in (0, 10, 20):
        topic.seal(0, base, [message(base + i) for i in range(10)])
    topic.edit(0, SetLogStart(13))
    topic.seal(1, 0, [message(0), message(1)])
    topic.seal_raw(1, 2, 5)
    topic.seal(2, 0, [message(0), None, message(2), message(3), None], [None, None])
    topic.edit(2, SetLogStart(2))
    return topic


@pytest.mark.parametrize("place", ["directory", "s3"])
@pytest.mark.parametrize("through", ["nothing", "spark"])
def test_partitions_are_described(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    through: str,
) -> None:
    """
    From log start on, in a directory and in a bucket, through Spark and without it.
    """
    location = str(tmp_path / "a [b] c")
    if place == "s3":
        server: S3Server = request.getfixturevalue("s3a" if through == "spark" else "moto_s3")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        location = f"s3://{server.bucket}/some/prefix"
    topic = flights(location)
    spark = request.getfixturevalue("spark") if through == "spark" else None

    found = describe_topic(spark, location, "flights")

    names = ("log_start", "sealed_end", "records", "records_are_exact", "files")
    dicts = found.to_dicts()
    assert [
        (13, 30, 17, True, 2),
        (0, 5, 2, True, 2),
        (2, 7, 3, False, 2),  # Two are left: what a file has below log start, only it knows.
        (0, 0, 0, True, 0),
    ] == [tuple(each[name] for name in names) for each in dicts]
    assert [
        (moment(10), moment(29)),
        (moment(0), moment(1)),
        (moment(0), moment(3)),
        (None, None),
    ] == [(each["min_timestamp"], each["max_timestamp"]) for each in dicts]
    assert [0, 1, 2, 3] == [each["partition"] for each in dicts]
    assert [None] * 4 == [each["lag"] for each in dicts]
    assert dicts[0]["size_bytes"] > 1_000
    assert topic.topic_id == found.topic_id


def test_records_are_those_of_read_topic(spark: SparkSession, tmp_path: Path) -> None:
    """
    Where they are exact; elsewhere there are at most as many.
    """
    flights(str(tmp_path))
    with pytest.warns(UserWarning, match="left out"):
        records = read_topic(spark, str(tmp_path), "flights", fail_on_data_loss=False)
    rows = records.groupBy("partition").count().collect()
    counts = {row[0]: row[1] for row in rows}

    for each in describe_topic(None, str(tmp_path), "flights").partitions:
        count = counts.get(each.partition, 0)
        assert each.records >= count
        assert not each.records_are_exact or each.records == count


def test_only_lists_with_log_start_are_read(tmp_path: Path) -> None:
    """
    1,501 segments: the sums of a list serve, and neither lists nor segments need be there.
    """
    topic = SealedTopic(str(tmp_path), "many").create()
    topic.seal(0, 0, *([message(offset)] for offset in range(1_501)))
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    lists = sorted(
        path for path in tmp_path.rglob("*.json") if path.parent.name not in ("topic", "manifest")
    )
    lists = [path for path in lists if path.name != "cluster.json"]
    kept = {path: path.read_bytes() for path in lists}
    assert kept, "there is no segment list"
    for path in lists:
        path.unlink()

    (whole,) = describe_topic(None, str(tmp_path), "many").partitions
    for path, body in kept.items():
        path.write_bytes(body)
    topic.edit(0, SetLogStart(7))
    (cut,) = describe_topic(None, str(tmp_path), "many").partitions

    assert (1_501, 1_501, moment(0)) == (whole.records, whole.files, whole.min_timestamp)
    assert (1_494, 1_494, moment(7)) == (cut.records, cut.files, cut.min_timestamp)


def test_the_text_is_a_table(tmp_path: Path) -> None:
    """
    Aligned, with sizes and times that a person reads, and the sums.
    """
    flights(str(tmp_path))

    title, *lines = str(describe_topic(None, str(tmp_path), "flights")).splitlines()

    assert title.startswith("flights (")
    assert str(tmp_path) in title
    assert [
        "partition",
        "0",
        "1",
        "2",
        "3",
        "all",
    ] == [line.split()[0] for line in lines]
    words = lines[1].split()
    assert ["0", "13", "30", "17"] == words[:4]
    assert ["KiB", "2", "2023-11-14", "22:13:30", "2023-11-14", "22:13:49"] == words[5:]
    assert "≤ 3" in lines[3]
    assert lines[4].endswith("-  -") or lines[4].split()[-2:] == ["-", "-"]
    assert len({line.index(" 2023") for line in lines[1:4]}) == 1
    assert "lag" not in lines[0]


def test_a_session_gives_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    """
    The same rows; without a session there is none.
    """
    flights(str(tmp_path))

    rows = describe_topic(spark, str(tmp_path), "flights").to_dataframe().orderBy("partition")

    assert [(0, 17), (1, 2), (2, 3), (3, 0)] == [
        (row.partition, row.records) for row in rows.collect()
    ]
    with pytest.raises(ValueError, match="spark"):
        describe_topic(None, str(tmp_path), "flights").to_dataframe()


def test_lag_is_what_agents_have_beyond(tmp_path: Path) -> None:
    """
    Before and after a seal; agents of another cluster are told.
    """
    with DriftlogProcess() as agent:
        location = str(agent.directory / "objects")
        _produce(agent, "flights", 5)
        kafka = {"kafka.bootstrap.servers": agent.bootstrap}

        before = describe_topic(None, location, "flights", kafka=kafka)
        agent.seal("flights")
        _produce(agent, "flights", 3)
        after = describe_topic(None, location, "flights", kafka=agent.bootstrap)

        assert [(0, 5, 5)] == [(p.sealed_end, p.log_end, p.lag) for p in before.partitions]
        assert [(5, 8, 3)] == [(p.sealed_end, p.log_end, p.lag) for p in after.partitions]
        assert "lag" in str(after)
        assert str(after).splitlines()[-1].endswith("3")
        SealedTopic(str(tmp_path), "flights").create().seal(0, 0, [message(i) for i in range(9)])
        with pytest.raises(ValueError, match="not of the cluster that owns this bucket"):
            describe_topic(None, str(tmp_path), "flights", kafka=kafka)
        SealedTopic(str(tmp_path), "others").create()
        with pytest.raises(DriftlogError, match="others"):
            describe_topic(None, str(tmp_path), "others", kafka=kafka)


def _produce(agent: DriftlogProcess, topic: str, count: int) -> None:
    from driftlog import Producer

    with Producer(bootstrap_servers=agent.bootstrap) as producer:
        for number in range(count):
            producer.produce(topic, value=f"{number}".encode())


@pytest.mark.parametrize("kafka", ["", {}, {"kafka.security.protocol": "plaintext"}])
def test_agents_need_an_address(tmp_path: Path, kafka: Any) -> None:
    """
    The client's default address is not asked: it may be another cluster's.
    """
    SealedTopic(str(tmp_path), "flights").create()

    with pytest.raises(ValueError, match="address"):
        describe_topic(None, str(tmp_path), "flights", kafka=kafka)


def test_errors_are_those_of_read_topic(tmp_path: Path) -> None:
    """
    For topics that are not there.
    """
    topic = SealedTopic(str(tmp_path), "flights").create()
    with pytest.raises(UnknownTopicError, match="there are: flights"):
        describe_topic(None, str(tmp_path), "fligths")
    topic.delete()
    with pytest.raises(DeletedTopicError):
        describe_topic(None, str(tmp_path), "flights")
