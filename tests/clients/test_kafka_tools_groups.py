"""Kafka's own tools for consumer groups, against Apache Kafka and against driftlog: see
test_kafka_tools.py.

Shell.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.clients.kafka_tools import Running
from tests.clients.tool_comparison import Pair, step, steps_of
from tests.support.kafka_peer import kafka_jars

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("kafka_tools"),
]

_SEEN_S: Final = 60.0

GROUPS: Final = "kafka-consumer-groups"


@contextmanager
def running(pair: Pair, command: str, ready: Callable[[str], bool]) -> Iterator[None]:
    """A tool that goes on, on both sides, once what it prints is *ready*; ended as by SIGTERM."""
    both = pair.start(command)
    try:
        give_up = time.monotonic() + _SEEN_S
        while not all(ready(run.said().out) for run in both):
            assert time.monotonic() < give_up, [run.said() for run in both]
            time.sleep(0.1)
        yield
    finally:
        _end(both)


def _end(both: tuple[Running, Running]) -> None:
    for run in both:
        run.stop()


def test_groups_without_members(pair: Pair, tmp_path: Path) -> None:
    """
    A group that was left is listed, described, reset in every way, and deleted, offsets first.
    """
    reset = f"{GROUPS} --reset-offsets --group g-left"
    plan = tmp_path / "plan.csv"
    plan.write_text("reset,0,2\nreset,1,1\n")
    pair.compare(
        [
            step("kafka-topics --create --topic reset --partitions 2"),
            step("kafka-topics --create --topic other"),
            *steps_of(f"""
                {GROUPS} --list
                {GROUPS} --describe --group g-none
                {GROUPS} --describe --group g-none --members
                {GROUPS} --describe --group g-none --state
                {GROUPS} --delete --group g-none
                {GROUPS} --delete-offsets --group g-none --topic reset
            """),
            step(
                "kafka-console-producer --topic reset --reader-property parse.key=true --sync",
                stdin="".join(f"key {n}\tvalue\n" for n in range(9)),
            ),
            step(
                "kafka-console-consumer --topic reset --group g-left --from-beginning "
                "--max-messages 9",
                unordered=True,
                reads=False,
            ),
            *steps_of(f"""
                {GROUPS} --list
                {GROUPS} --list --state
                {GROUPS} --list --state Stable
                {GROUPS} --list --state Empty
                {GROUPS} --list --type classic
                {GROUPS} --list --type consumer
                kafka-groups --list
                kafka-groups --list --group-type classic
                kafka-groups --list --consumer
                kafka-share-groups --list
                kafka-streams-groups --list
                kafka-configs --entity-type groups --describe
                {GROUPS} --describe --group g-left
                {GROUPS} --describe --group g-left --offsets --verbose
                {GROUPS} --describe --group g-left --members
                {GROUPS} --describe --group g-left --members --verbose
                {GROUPS} --describe --group g-left --state
                {GROUPS} --describe --group g-left --state --verbose
                {GROUPS} --describe --all-groups
                {GROUPS} --describe --all-groups --state
                {reset} --topic reset --to-earliest
                {reset} --topic reset --to-earliest --dry-run
                {reset} --topic reset --to-earliest --execute
                {reset} --topic reset --to-latest --execute
                {reset} --topic reset:0 --to-offset 1 --execute
                {reset} --topic reset:1 --to-offset 99 --execute
                {reset} --topic reset --shift-by 1 --execute
                {reset} --topic reset --shift-by -1 --execute
                {reset} --topic reset --shift-by -99 --dry-run
                {reset} --topic reset --to-current --dry-run
                {reset} --all-topics --to-current --export --dry-run
                {reset} --topic reset --to-datetime 2020-01-01T00:00:00.000 --dry-run
                {reset} --topic reset --to-datetime 2100-01-01T00:00:00.000+02:00 --dry-run
                {reset} --topic reset --by-duration P1D --dry-run
                {reset} --topic reset --by-duration PT0S --dry-run
                {reset} --from-file {plan} --dry-run
                {reset} --from-file {plan} --execute
                {reset} --topic none --to-earliest --execute
                {reset} --topic reset:7 --to-earliest --execute
                {reset} --topic other --to-latest --execute
                {GROUPS} --reset-offsets --group g-made --topic reset --to-latest --execute
                {GROUPS} --describe --group g-left
                {GROUPS} --describe --all-groups --offsets
                {GROUPS} --delete-offsets --group g-left --topic reset:0
                {GROUPS} --delete-offsets --group g-left --topic other
                {GROUPS} --delete-offsets --group g-left --topic none
                {GROUPS} --describe --group g-left
                {GROUPS} --delete --group g-left
                {GROUPS} --delete --group g-left --group g-made
                {GROUPS} --list
                kafka-topics --delete --topic reset|other
            """),
        ]
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_with_a_member(pair: Pair, protocol: str) -> None:
    """
    A member is described, with its assignment, and nobody resets or deletes what it uses; the
    same in both protocols.
    """
    topic, group = f"live-{protocol}", f"g-{protocol}"
    reset = f"{GROUPS} --reset-offsets --group {group} --topic {topic}"
    consume = (
        f"kafka-console-consumer --topic {topic} --group {group} --from-beginning "
        f"--command-property group.protocol={protocol} --command-property client.id=c "
        "--command-property auto.commit.interval.ms=200"
    )
    pair.compare(
        [
            step(f"kafka-topics --create --topic {topic} --partitions 2"),
            step(
                f"kafka-console-producer --topic {topic} --reader-property parse.key=true",
                stdin="1\ta\n2\tb\n3\tc\n4\td\n",
            ),
        ]
    )
    with running(pair, consume, lambda said: said.count("\n") >= 4):
        pair.compare(
            [
                step(f"{GROUPS} --describe --group {group}", unordered=True),
                *steps_of(f"""
                    {GROUPS} --list --state
                    {GROUPS} --list --type {protocol}
                    kafka-groups --list
                    {GROUPS} --describe --group {group} --members
                    {GROUPS} --describe --group {group} --members --verbose
                    {GROUPS} --describe --group {group} --state
                    {GROUPS} --describe --group {group} --state --verbose
                    {GROUPS} --describe --group {group} --offsets --verbose
                    {reset} --to-earliest --execute
                    {GROUPS} --delete --group {group}
                    {GROUPS} --delete-offsets --group {group} --topic {topic}
                """),
            ]
        )
    pair.compare(
        [
            *steps_of(f"""
                {GROUPS} --describe --group {group}
                {GROUPS} --describe --group {group} --state
                {reset} --to-earliest --execute
            """),
            step(
                f"kafka-console-consumer --topic {topic} --group {group} --max-messages 4 "
                f"--command-property group.protocol={protocol}",
                unordered=True,
                reads=False,
            ),
            *steps_of(f"""
                {GROUPS} --delete --group {group}
                kafka-topics --delete --topic {topic}
            """),
        ]
    )
