"""`driftlog produce` says why the broker refused a record, also where librdkafka drops the reason.

If it failed: an operator would read "Broker failed to validate record", and not know what to do.
"""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from driftlog import cli
from tests.support.driftlog_process import DriftlogProcess


def test_a_record_without_a_key_for_a_compacted_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The message names the topic's config and the options for keys; records with keys are written.
    """
    file = tmp_path / "records"
    file.write_text("k:v\n")
    with DriftlogProcess() as agent:
        admin = AdminClient({"bootstrap.servers": agent.bootstrap})
        topic = NewTopic("latest", 1, 1, config={"cleanup.policy": "compact"})
        admin.create_topics([topic])["latest"].result(30)

        def produce(*extra: str) -> int:
            line = ["produce", "latest", "-l", str(file), "--bootstrap-server", agent.bootstrap]
            return cli.main([*line, *extra])

        refused = produce()
        why = capsys.readouterr().err
        written = produce("-K:")

    assert 1 == refused
    assert "takes no record without a key, as its cleanup.policy has compact" in why
    assert 0 == written
