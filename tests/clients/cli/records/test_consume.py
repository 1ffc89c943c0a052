"""`driftlog consume -e` ends: at the end of the log, or when --timeout is over.

If it failed: a script would hang on records that no agent can read.
"""

import time

import confluent_kafka
import pytest

from driftlog import cli
from tests.clients.conftest import seal
from tests.support.driftlog_process import DriftlogProcess


def test_the_wait_for_records_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Their segment is missing: the agent answers with a retriable error for half a minute.
    """
    with DriftlogProcess() as agent:
        producer = confluent_kafka.Producer({"bootstrap.servers": agent.bootstrap})
        producer.produce("t", b"v", partition=0)
        assert 0 == producer.flush(30)
        seal(agent, "t")
        agent.kill()
        (segment,) = (agent.directory / "objects").rglob("*.parquet")
        body = segment.read_bytes()
        segment.unlink()
        agent.start()
        line = ["consume", "t", "-e", "--bootstrap-server", agent.bootstrap]

        began_s = time.monotonic()
        status = cli.main([*line, "--timeout", "3"])
        took_s = time.monotonic() - began_s
        limited = capsys.readouterr()
        segment.write_bytes(body)
        whole = cli.main(line)

    assert 1 == status
    assert "no record for 3 s (--timeout)" in limited.err
    assert "" == limited.out
    assert took_s < 20
    assert 0 == whole
