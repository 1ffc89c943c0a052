"""Members of consumer groups in threads: unmodified clients, and what each of them has read.

    with Members(bootstrap, "g", "t") as members:
        members.join("confluent")
        members.until(lambda: len(members.read) == 100)

Shell.
"""

import asyncio
import contextlib
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import aiokafka
import confluent_kafka
import kafka

from tests.support.kafka_peer import java_command

SESSION_MS: Final = 30_000
"""Long enough for an agent to come back, or to be replaced, on a slow machine."""

SHORT_SESSION_MS: Final = 10_000
"""Of a member that is to be missed."""

_LEAVE_S: Final = 60.0
_JAVA: Final = Path(__file__).with_name("JavaGroup.java")
_JVM: Final = (
    "-Xmx256m",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)

KIP_848: Final[dict[str, Any]] = {
    "group.protocol": "consumer",
    "session.timeout.ms": None,
    "heartbeat.interval.ms": None,
}
"""Settings of a member of the new protocol: the coordinator says the rest."""

Place = tuple[int, int]
"""Partition, offset."""


@dataclass
class Member:
    """One consumer, in a thread of its own.

    ``leave``: it goes as its client closes it.  ``abandon``: it stops without a word, as if it had
    been killed: nothing is committed and nobody is told.
    """

    bootstrap: str
    group_id: str
    topic: str
    settings: dict[str, Any] = field(default_factory=dict)
    read: list[Place] = field(default_factory=list)
    partitions: set[int] = field(default_factory=set)
    rebalances: int = 0
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.stopping = threading.Event()
        self.abandoned = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.consume()
        except BaseException as error:  # noqa: BLE001  # for the thread that asks
            self.error = error

    def consume(self) -> None:
        """Until `stopping`; commit and leave, unless abandoned."""
        raise NotImplementedError

    def leave(self) -> None:
        """Go as one should."""
        self.stopping.set()
        self.thread.join(_LEAVE_S)
        assert not self.thread.is_alive(), "it does not end"
        if self.error is not None:
            raise self.error

    def abandon(self) -> None:
        """Go without a word."""
        self.abandoned = True
        self.stopping.set()


class Confluent(Member):
    """librdkafka."""

    def consume(self) -> None:
        configs = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group_id,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            "enable.auto.commit": False,
            "log_level": 2,
            **self.settings,
        }
        consumer = confluent_kafka.Consumer(
            {name: value for name, value in configs.items() if value is not None}
        )

        def assigned(_: Any, partitions: list[Any]) -> None:
            self.rebalances += 1
            self.partitions |= {p.partition for p in partitions}

        def revoked(_: Any, partitions: list[Any]) -> None:
            with contextlib.suppress(confluent_kafka.KafkaException):
                if not self.abandoned:
                    consumer.commit(asynchronous=False)
            self.partitions -= {p.partition for p in partitions}

        def lost(_: Any, partitions: list[Any]) -> None:
            self.partitions -= {p.partition for p in partitions}

        consumer.subscribe([self.topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
        while not self.stopping.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.read.append((partition, offset))
        if self.abandoned:
            # It is not polled any more, and its heartbeats go on until it is freed: a member that
            # hangs.  Freeing it would have it leave.
            _ABANDONED.append(consumer)
            return
        with contextlib.suppress(confluent_kafka.KafkaException):
            consumer.commit(asynchronous=False)
        consumer.close()


_ABANDONED: Final[list[Any]] = []


class Aiokafka(Member):
    """aiokafka."""

    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # untyped
            async def on_partitions_revoked(self, revoked: Any) -> None:
                if revoked and not member.abandoned:
                    await consumer.commit()
                member.partitions.clear()

            async def on_partitions_assigned(self, assigned: Any) -> None:
                member.rebalances += 1
                member.partitions = {p.partition for p in assigned}

        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group_id,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=500,
            enable_auto_commit=False,
            **{"session_timeout_ms": SESSION_MS, **self.settings},
        )
        await consumer.start()
        consumer.subscribe([self.topic], listener=Listener())
        while not self.stopping.is_set():
            for messages in (await consumer.getmany(timeout_ms=100)).values():
                self.read += [(m.partition, m.offset) for m in messages]
        if self.abandoned:
            await consumer._client.close()  # noqa: SLF001  # aiokafka's: a member that dies says no goodbye
            return
        await consumer.commit()
        await consumer.stop()


class KafkaPython(Member):
    """kafka-python."""

    def consume(self) -> None:
        member = self

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # untyped
            def on_partitions_revoked(self, revoked: Any) -> None:
                member.partitions -= {p.partition for p in revoked}

            def on_partitions_assigned(self, assigned: Any) -> None:
                member.rebalances += 1
                member.partitions = {p.partition for p in assigned}

        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group_id,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=500,
            enable_auto_commit=True,  # before each rebalance too
            **{"session_timeout_ms": SESSION_MS, **self.settings},
        )
        consumer.subscribe([self.topic], listener=Listener())
        # A leader that sees the partitions only after it has assigned them joins again; when that
        # takes longer than one `poll`, kafka-python 3.0.12 forgets the answer: it holds nothing,
        # and its heartbeats stay off until its session ends.  `need_rejoin` is already false then.
        assert consumer.partitions_for_topic(self.topic)
        while not self.stopping.is_set():
            for messages in consumer.poll(100).values():
                self.read += [(m.partition, m.offset) for m in messages]
        if self.abandoned:
            consumer._client.close()  # noqa: SLF001  # kafka-python's: as above
            return
        consumer.close()


class Java(Member):
    """Kafka's own client, a process; *settings* are its configs."""

    def consume(self) -> None:
        configs = {
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            **self.settings,
        }
        arguments = [f"{name}={value}" for name, value in configs.items() if value is not None]
        line = java_command(
            str(_JAVA), self.bootstrap, self.group_id, self.topic, *arguments, jvm=_JVM
        )
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            leaving = threading.Thread(target=self._leave, args=(process,), daemon=True)
            leaving.start()
            for printed in process.stdout:
                self._heard(printed.split())
            code = process.wait()
            said.seek(0)
            assert self.abandoned or code == 0, said.read()[-3000:].decode(errors="replace")

    def _leave(self, process: "subprocess.Popen[bytes]") -> None:
        self.stopping.wait()
        if self.abandoned:
            process.kill()
        else:
            assert process.stdin is not None
            process.stdin.write(b"leave\n")
            process.stdin.close()

    def _heard(self, words: list[bytes]) -> None:
        if words[0] == b"+":
            self.rebalances += 1
            self.partitions |= set(map(int, words[1:]))
        elif words[0] == b"-":
            self.partitions -= set(map(int, words[1:]))
        else:
            self.read.append((int(words[0]), int(words[1])))


KINDS: Final[dict[str, type[Member]]] = {
    "confluent": Confluent,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
    "java": Java,
}


class Members:
    """A group: who is in it now, and who was."""

    def __init__(self, bootstrap: str, group_id: str, topic: str) -> None:
        self._bootstrap, self._group_id, self._topic = bootstrap, group_id, topic
        self.all: list[Member] = []
        self.here: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.here:
            member.stopping.set()
        for member in self.here:
            member.thread.join(_LEAVE_S)

    def join(self, kind: str, **settings: Any) -> Member:
        """One more."""
        member = KINDS[kind](self._bootstrap, self._group_id, self._topic, settings)
        self.all.append(member)
        self.here.append(member)
        return member

    def leave(self, member: Member) -> None:
        """One less, as it should go."""
        self.here.remove(member)
        member.leave()

    def abandon(self, member: Member) -> None:
        """One less, without a word."""
        self.here.remove(member)
        member.abandon()

    @property
    def places(self) -> Counter[Place]:
        """How often each record was read, by all."""
        return Counter(place for member in self.all for place in list(member.read))

    def shared(self, partitions: int) -> bool:
        """Whether each partition has one member here, and each member a fair share."""
        shares = [member.partitions for member in self.here]
        least = partitions // len(shares)
        return (
            sum(map(len, shares)) == partitions
            and set().union(*shares) == set(range(partitions))
            and min(map(len, shares)) >= min(least, 1)
        )

    def until(self, holds: Callable[[], bool], seconds: float = 60.0, what: str = "") -> None:
        """Wait.

        Raises:
            AssertionError: it took too long; with what there is.
        """
        deadline = time.monotonic() + seconds
        while not holds():
            for member in self.here:
                if member.error is not None:
                    raise member.error
            assert time.monotonic() < deadline, f"{what}: {[m.partitions for m in self.here]}"
            time.sleep(0.05)
