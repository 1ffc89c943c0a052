"""The whole life of records on S3: produced, sealed, restarted, read back."""

import subprocess

import pytest

from tests.clients.conftest import make_topics, seal
from tests.clients.peers import Aiokafka, Confluent, KafkaPython, Peer
from tests.clients.records import CODECS, at_offsets
from tests.support.driftlog_process import DriftlogProcess
from tests.support.s3_servers import S3Server

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("s3")]


def test_records_live_through_everything_on_moto(moto_s3: S3Server) -> None:
    """
    Three clients' records in every codec, recent, sealed, after SIGKILL and on an empty disk's
    cache: the bucket has them.
    """
    live_on(moto_s3)


def test_records_live_through_everything_on_localstack(localstack_s3: S3Server) -> None:
    """
    The same on another S3.
    """
    live_on(localstack_s3)


def live_on(s3: S3Server) -> None:
    writers: list[Peer] = [Confluent(), Aiokafka(), KafkaPython()]
    topics = {f"{w.name}.{codec}": codec for w in writers for codec in CODECS}
    with DriftlogProcess(
        arguments=("--store", f"{s3.location}/some/prefix"), environment=s3.environment
    ) as agent:
        make_topics(agent, dict.fromkeys(topics, 1))
        for writer in writers:
            own = {t: c for t, c in topics.items() if t.startswith(f"{writer.name}.")}
            writer.produce(agent.bootstrap, own, writer.corpus)
        expected = {f"{w.name}.{codec}": at_offsets(w.corpus) for w in writers for codec in CODECS}
        counts = {topic: len(reads) for topic, reads in expected.items()}

        recent = Confluent().consume(agent.bootstrap, counts)
        for topic in list(topics)[1:]:
            assert seal(agent, topic) == {0: counts[topic]}
        agent.seal(next(iter(topics)))  # by the command, as a user does it
        agent.kill()
        agent.start()
        sealed = Aiokafka().consume(agent.bootstrap, counts)
        assert agent.terminate() == 0
        agent.start()
        again = KafkaPython().consume(agent.bootstrap, counts)

    assert expected == recent
    assert expected == sealed
    assert expected == again


def test_sealing_a_topic_that_is_not_there_is_refused() -> None:
    """
    `driftlog segments seal` ends with an error that names it.
    """
    with DriftlogProcess() as agent, pytest.raises(subprocess.CalledProcessError):
        agent.seal("nowhere")
