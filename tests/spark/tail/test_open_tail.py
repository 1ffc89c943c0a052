"""A wrong option of the tail would be ignored, or told without the way out."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from driftlog_spark_reader.common.errors import StorageError
from driftlog_spark_reader.tail.agents_tail import AgentsTail
from driftlog_spark_reader.tail.flush_tail import FlushReader, FlushTail
from driftlog_spark_reader.tail.open_tail import open_tail

AGENTS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
ETCD = {"etcd": "http://127.0.0.1:1"}


@pytest.mark.parametrize("options", [AGENTS, {**AGENTS, "includeTail": "False"}, ETCD, {}])
def test_there_is_no_tail_unless_it_is_asked_for(options: dict[str, str], tmp_path: Path) -> None:
    """
    A job written for Spark's Kafka source has kafka.bootstrap.servers, and reads sealed rows.
    """
    assert open_tail(options, str(tmp_path)) is None


def test_the_address_decides_where_the_tail_is_from(tmp_path: Path) -> None:
    """
    Case does not matter, and etcd comes before agents: it needs none.
    """
    agents = open_tail({"INCLUDETAIL": "true", **AGENTS}, str(tmp_path))
    etcd = open_tail({"includetail": "TRUE", **AGENTS, **ETCD}, str(tmp_path))

    assert isinstance(agents, AgentsTail)
    assert isinstance(etcd, FlushTail)
    assert FlushReader(f"file:{tmp_path}") == pickle.loads(pickle.dumps(etcd.reader()))
    assert "127.0.0.1:1" == pickle.loads(pickle.dumps(agents.reader())).settings.servers
    assert "127.0.0.1:1" not in repr(agents.reader())  # nor a password
    etcd.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"needs kafka\.bootstrap\.servers, the address of agents, or etcd"),
        ({"etcd.user": "u"}, "etcd.… without option etcd"),
        ({**AGENTS, "failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'"),
        ({**AGENTS, "kafkaConsumer.pollTimeoutMs": "1s"}, "pollTimeoutMs is '1s'"),
        ({**AGENTS, "kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({**AGENTS, "kafka.bogus": "1"}, r"kafka\.\* is refused: .*bogus"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], said: str, tmp_path: Path) -> None:
    """
    Before anything is read.
    """
    with pytest.raises(ValueError, match=said):
        open_tail({"includeTail": "true", **options}, str(tmp_path))


def test_a_wrong_location_is_refused(tmp_path: Path) -> None:
    """
    Flush objects are there.
    """
    with pytest.raises(StorageError, match="does not exist"):
        open_tail({"includeTail": "true", **ETCD}, str(tmp_path / "nowhere"))


def test_the_message_says_how_to_install_what_etcd_needs(tmp_path: Path) -> None:
    """
    Without grpcio: the extra does not install it, and agents can be read without.
    """
    program = (
        "import sys\n"
        "sys.modules['grpc'] = None\n"
        "from driftlog_spark_reader.tail.open_tail import open_tail\n"
        f"assert open_tail({{'includeTail': 'true', **{AGENTS}}}, {str(tmp_path)!r})\n"
        f"open_tail({{'includeTail': 'true', **{ETCD}}}, {str(tmp_path)!r})\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )

    assert 1 == ran.returncode
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: option etcd needs grpcio and protobuf on the driver")
    assert "pip install 'grpcio" in last
    assert "kafka.bootstrap.servers" in last
