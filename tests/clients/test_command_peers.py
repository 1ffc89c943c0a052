"""`driftlog topics|configs|groups|cluster` against an agent and Apache Kafka: they must agree.

Each test types the same commands at both, and compares what they say to programs.
"""

import contextlib
import io
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from driftlog.cli import main
from tests.clients.command import read, refused, run, said
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import KafkaPeer, java_command, kafka_jars

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.xdist_group("command"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaPeer]:
    """Apache Kafka, one broker."""
    with KafkaPeer() as peer:
        yield peer


@pytest.fixture
def both(
    request: pytest.FixtureRequest, agent: DriftlogProcess, kafka: KafkaPeer
) -> Callable[[Callable[[str], Any]], Any]:
    """Run at both, at once unless the parameter is 1; what they agree on."""

    def run_at_both(scenario: Callable[[str], Any]) -> Any:
        with ThreadPoolExecutor(getattr(request, "param", 2)) as threads:
            theirs, ours = threads.map(scenario, (kafka.bootstrap, agent.bootstrap))
        assert theirs == ours
        return ours

    return run_at_both


Both = Callable[[Callable[[str], Any]], Any]


@pytest.fixture
def name() -> str:
    """Of a topic or a group; the same at both."""
    return f"t-{uuid.uuid4().hex[:12]}"


def test_topics_are_made_altered_described_and_deleted(both: Both, name: str) -> None:
    """
    As Kafka's script does it, with its words or ours.
    """

    def scenario(at: str) -> Any:
        found: list[Any] = []
        # A day: what is produced here is still there when it is described.
        kept = ("--config", "retention.ms=86400000")
        made = ("--partitions", "2", "--replication-factor", "1", *kept)
        found.append(said(at, "topics", "--create", "--topic", name, *made))
        found.append(said(at, "topics", "create", name, "--if-not-exists"))
        found.append(refused(at, "topics", "create", name))
        found.append(said(at, "topics", "create", f"{name}-2", "--dry-run"))
        assert said(at, "topics", "list", f"{name}-2", "-q") == ""
        said(at, "produce", name, "-p", "0", "-q", stdin=b"a\nb\nc\n")
        found.append(the_topic(at))
        found.append(refused(at, "topics", "alter", name, "--partitions", "1"))
        found.append(said(at, "topics", "alter", name, "-p", "3", "-c", "max.message.bytes=9999"))
        found.append(said(at, "topics", "alter", name, "--delete-config", "retention.ms"))
        found.append(the_topic(at))
        found.append(read(at, "topics", "list", f"{name[:5]}*{name[5:]}"))
        found.append(refused(at, "topics", "delete", f"{name}x"))
        found.append(said(at, "topics", "delete", name))
        found.append(said(at, "topics", "delete", name, "--if-exists"))
        found.append(said(at, "topics", "list", name, "-q"))
        return found

    def the_topic(at: str) -> Any:
        (topic,) = read(at, "topics", "describe", name)
        assert len(topic.pop("topic_id")) == 22
        topic.pop("config_notes")  # of driftlog alone: test_command_configs
        topic["configs"].pop("min.insync.replicas", None)  # Kafka 4 sets it in a cluster's own
        return topic

    found = both(scenario)

    before, after = found[4], found[8]
    assert {"retention.ms": "86400000"} == before["configs"]
    assert [3, 0] == [p["latest_offset"] for p in before["partitions"]]
    assert {"max.message.bytes": "9999"} == after["configs"]
    assert [0, 1, 2] == [p["partition"] for p in after["partitions"]]
    assert "--if-not-exists" in found[2]
    assert f"did you mean '{name}'" in found[10]
    assert found[-1] == ""


def test_what_a_topic_cannot_have_is_refused_in_kafkas_words(both: Both, name: str) -> None:
    """
    A wrong config, a wrong value, a wrong name: nothing is made.
    """

    def scenario(at: str) -> Any:
        return [
            refused(at, "topics", "create", name, "-c", "retenton.ms=1"),
            refused(at, "topics", "create", name, "-c", "retention.ms=x"),
            refused(at, "topics", "create", "a name"),
            run("topics", "list", name, bootstrap=at).stderr,
        ]

    found = both(scenario)

    assert "Unknown topic config name: retenton.ms" in found[0]
    assert b"no topics of such a name" in found[3]


def test_configs_are_set_appended_subtracted_and_reset(both: Both, name: str) -> None:
    """
    And described with where each value is from.
    """

    def scenario(at: str) -> Any:
        said(at, "topics", "create", name, "-r", "1")
        alter = ("configs", "alter", "--topic", name)
        said(at, *alter, "--add-config", "cleanup.policy=[compact,delete],retention.ms=5")
        steps: list[Any] = [configs(at)]
        said(
            at,
            *alter,
            "--subtract-config",
            "cleanup.policy=delete",
            "--delete-config",
            "retention.ms",
        )
        steps.append(configs(at))
        said(at, *alter, "--append-config", "cleanup.policy=delete", "--dry-run")
        steps.append(configs(at))
        said(at, *alter, "--append-config", "cleanup.policy=delete")
        steps.append(configs(at))
        steps.append(refused(at, *alter, "--add-config", "retention.mss=1"))
        every = read(
            at, "configs", "--describe", "--entity-type", "topics", "--entity-name", name, "--all"
        )
        steps.append({c["name"]: c["source"] for c in every[0]["configs"]}["retention.ms"])
        return steps

    def configs(at: str) -> dict[str, str]:
        (entity,) = read(at, "configs", "describe", "--topic", name)
        return {c["name"]: c["value"] for c in entity["configs"] if c["source"] == "topic"}

    found = both(scenario)

    assert [
        {"cleanup.policy": "compact,delete", "retention.ms": "5"},
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "compact,delete"},
    ] == found[:4]
    assert "did you mean 'retention.ms'" in found[4]
    assert found[5] == "default"


def test_a_cluster_says_who_is_in_it(both: Both) -> None:
    """
    One broker, which is the controller; and the requests that it knows.
    """

    def scenario(at: str) -> Any:
        info = read(at, "cluster", "info")
        assert len(info["cluster_id"]) == 22
        (broker,) = read(at, "cluster", "brokers")
        assert at == broker["address"]
        apis = {api["name"] for api in read(at, "cluster", "apis")}
        wanted = {"Produce", "Fetch", "Metadata", "CreateTopics", "IncrementalAlterConfigs"}
        return (
            info["brokers"],
            info["controller"],
            broker["id"],
            broker["controller"],
            wanted - apis,
        )

    assert (1, 1, 1, True, set()) == both(scenario)


# ── Groups ──


def test_lag_is_what_is_not_read_yet(both: Both, name: str) -> None:
    """
    Of a group that has gone: what was printed is committed, and no more.
    """
    group = f"g-{name}"

    def scenario(at: str) -> Any:
        said(at, "topics", "create", name, "-p", "2", "-r", "1")
        said(at, "produce", name, "-p", "0", "-q", stdin=b"a\nb\nc\n")
        said(at, "produce", name, "-p", "1", "-q", stdin=b"d\n")
        consumed = said(at, "consume", name, "--group", group, "--from-beginning", "-e")
        said(at, "produce", name, "-p", "0", "-q", stdin=b"e\nf\n")
        first = said(at, "consume", name, "--group", group, "-c", "1")
        (listed,) = [g for g in read(at, "groups", "list") if g["group"] == group]
        return sorted(consumed.split()), first, listed, described(at, group)

    consumed, first, listed, found = both(scenario)

    assert (["a", "b", "c", "d"], "e\n") == (consumed, first)
    assert {"group": group, "type": "classic", "state": "Empty", "simple": False} == listed
    assert found["lag"] == 1
    assert [(0, 4, 5, 1), (1, 1, 1, 0)] == [
        (p["partition"], p["committed_offset"], p["end_offset"], p["lag"]) for p in found["offsets"]
    ]


def test_partitions_are_read_on_from_what_the_group_has_stored(both: Both, name: str) -> None:
    """
    Without joining it: -p with --group, as Kafka's console consumer has it.  What was printed is
    committed, also where it took no longer than finding the coordinator.
    """
    group = f"g-{name}"

    def scenario(at: str) -> Any:
        said(at, "topics", "create", name, "-p", "2", "-r", "1")
        said(at, "produce", name, "-p", "1", "-q", stdin=b"a\nb\nc\nd\n")
        of = ("consume", name, "-p", "1", "--group", group)
        return [
            said(at, *of, "-o", "beginning", "-c", "2"),
            said(at, *of, "-c", "1"),
            said(at, *of, "-o", "stored", "-e"),
            said(at, *of, "-e"),
            [p["committed_offset"] for p in described(at, group)["offsets"]],
        ]

    assert ["a\nb\n", "c\n", "d\n", "", [4]] == both(scenario)


def described(at: str, group: str) -> Any:
    (found,) = read(at, "groups", "describe", group)
    return found


@contextlib.contextmanager
def member(at: str, group: str, topic: str, protocol: str) -> Iterator[None]:
    """A consumer that is in the group, and has committed what it read."""
    consumer = Consumer(
        {
            "bootstrap.servers": at,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "log_level": 2,
        }
    )
    consumer.subscribe([topic])
    try:
        deadline = time.monotonic() + 60
        message = None
        while message is None and time.monotonic() < deadline:
            message = consumer.poll(0.5)
        assert message is not None, "nothing came"
        consumer.commit(asynchronous=False)
        yield
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_that_is_in_use_is_left_alone(both: Both, name: str, protocol: str) -> None:
    """
    Neither its offsets nor itself; the message says who is in it and what to do.
    """

    def scenario(at: str) -> Any:
        group = f"g-{name}"
        said(at, "topics", "create", name, "-r", "1")
        said(at, "produce", name, "-q", stdin=b"a\nb\n")
        with member(at, group, name, protocol):
            found = described(at, group)
            (who,) = found["members"]
            to = ("--to-earliest", "--execute")
            errors = [
                refused(at, "groups", "reset-offsets", group, "--topic", name, *to),
                refused(at, "groups", "delete", group),
                refused(at, "groups", "delete-offsets", group, "--topic", name),
            ]
            state = run("groups", "describe", group, "--state", bootstrap=at).stdout
        deadline = time.monotonic() + 30
        while described(at, group)["state"] != "Empty" and time.monotonic() < deadline:
            time.sleep(0.5)
        said(at, "groups", "delete", group)
        gone = refused(at, "groups", "describe", group)
        assignment = who["assignment"]
        return found["type"], found["state"], who["client_id"], assignment, errors, state, gone

    kind, state, client, assignment, errors, shown, gone = both(
        lambda at: tuple(_without(at, part) for part in scenario(at))
    )

    assert (protocol, "Stable", "reader") == (kind, state, client)
    assert [{"topic": name, "partition": 0}] == assignment
    assert "in use (Stable, 1 member: reader at /127.0.0.1)" in errors[0]
    assert errors[0] == errors[1]
    assert f"reads {name} now: stop its members first" in errors[2]
    assert b"Stable" in shown
    assert "does not exist" in gone


def _without(at: str, part: Any) -> Any:
    """Where a broker listens differs."""
    if isinstance(part, bytes):
        return b" ".join(part.replace(at.encode(), b"HERE").split())
    return part


MOVES = {
    "--to-earliest": [0, 0],
    "--to-latest": [4, 1],
    "--to-current": [2, 1],
    "--to-offset 3": [3, 1],
    "--to-offset 99": [4, 1],
    "--shift-by -1": [1, 0],
    "--shift-by 100": [4, 1],
    "--to-datetime 2023-11-14T22:13:20.002": [2, 1],
    "--to-datetime 2023-11-14T22:13:20": [0, 0],
    "--by-duration P1D": [4, 1],
}


def typed(at: str, *arguments: str) -> str:
    """As `said`, without a process for each: there are many."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main([*arguments, "-b", at]) == 0
    return out.getvalue()


@pytest.mark.parametrize("both", [1], indirect=True)  # `typed` has the standard output of all
def test_offsets_go_where_they_are_sent(both: Both, name: str, tmp_path: Path) -> None:
    """
    With each way of saying where, tried first and then done; nothing moves before.
    """
    saved = tmp_path / "saved.csv"
    group = f"g-{name}"
    lines = [
        json.dumps({"value": "v", "partition": n // 4, "timestamp": 1_700_000_000_000 + n % 4})
        for n in range(5)
    ]
    start = f"{name},0,2\n{name},1,1\n"

    def scenario(at: str) -> Any:
        # For ever: Kafka looks every five minutes for what is older than a week.
        said(at, "topics", "create", name, "-p", "2", "-r", "1", "-c", "retention.ms=-1")
        said(at, "produce", name, "--json", "-q", stdin="\n".join(lines).encode())
        reset = ("groups", "reset-offsets", "--group", group)
        # A group that nobody made may be given offsets.
        typed(at, *reset, "--from-file", str(saved), "--execute")
        found: list[Any] = [offsets(at)]
        for how in MOVES:
            tried = json.loads(typed(at, *reset, "--topic", name, *how.split(), "--json"))
            before = offsets(at)
            typed(at, *reset, "--all-topics", *how.split(), "--execute")
            found.append((how, [m["new_offset"] for m in tried], before, offsets(at)))
            typed(at, *reset, "--from-file", str(saved), "--execute")
        exported = said(at, *reset, "--all-topics", "--to-current", "--export")
        said(at, *reset, "--topic", f"{name}:1", "--to-earliest", "--execute")
        found += [exported, offsets(at)]
        said(at, "groups", "delete-offsets", group, "--topic", f"{name}:0")
        found.append(offsets(at))
        found.append(refused(at, *reset, "--topic", name, "--shift-by", "1"))
        return found

    def offsets(at: str) -> list[int]:
        (found,) = json.loads(typed(at, "groups", "describe", group, "--json"))
        return [p["committed_offset"] for p in found["offsets"]]

    saved.write_text(start)
    found = both(scenario)

    assert [2, 1] == found[0]
    assert [(how, new, [2, 1], new) for how, new in MOVES.items()] == found[1:-4]
    assert [start, [2, 0], [0]] == found[-4:-1]
    assert f"{name} [0] has no committed offset to shift" in found[-1]


def test_the_oldest_records_are_deleted(both: Both, name: str) -> None:
    """
    Before an offset, a time, or all: tried first, and then done; nothing goes before.
    """
    first_ms = 1_700_000_000_000
    lines = [
        json.dumps({"value": "v", "partition": n // 4, "timestamp": first_ms + n % 4})
        for n in range(5)
    ]

    def scenario(at: str) -> Any:
        # For ever: Kafka looks every five minutes for what is older than a week.
        said(at, "topics", "create", name, "-p", "2", "-r", "1", "-c", "retention.ms=-1")
        said(at, "produce", name, "--json", "-q", stdin="\n".join(lines).encode())
        found: list[Any] = []
        for topic, *how in (
            (f"{name}:0", "--before-offset", "1"),
            (name, "--before-datetime", "2023-11-14T22:13:20.002"),
            (name, "--all"),
        ):
            line = ("topics", "delete-records", topic, *how)
            tried = read(at, *line)
            before = starts(at)
            done = read(at, *line, "--execute")
            new = ("partition", "new_earliest_offset", "offsets")
            assert [[r[n] for n in new] for r in tried] == [[r[n] for n in new] for r in done]
            found.append(([[r[n] for n in new] for r in done], before, starts(at)))
        found.append(refused(at, "topics", "delete-records", name, "--before-offset", "5"))
        found.append(refused(at, "topics", "delete-records", f"{name}:7", "--all"))
        compact = ("-c", "cleanup.policy=compact")
        said(at, "topics", "create", f"{name}-c", "-p", "1", "-r", "1", *compact)
        said(at, "produce", f"{name}-c", "-K:", "-q", stdin=b"k:v\n")
        for extra in ("--dry-run", "--execute"):
            why = refused(at, "topics", "delete-records", f"{name}-c", "--all", extra)
            assert "cleanup.policy is compact" in why
            found.append(why)
        return found

    def starts(at: str) -> list[int]:
        (topic,) = read(at, "topics", "describe", name)
        return [p["earliest_offset"] for p in topic["partitions"]]

    found = both(scenario)

    assert [
        ([[0, 1, 1]], [0, 0], [1, 0]),
        ([[0, 2, 1], [1, 1, 1]], [1, 0], [2, 1]),
        ([[0, 4, 2], [1, 1, 0]], [2, 1], [4, 1]),
    ] == found[:3]
    assert f"{name} [0] ends at 4, below 5" in found[3]
    assert f"{name} has no partition 7: it has 0 to 1" in found[4]


def test_a_group_that_is_not_there_is_named(both: Both, name: str) -> None:
    """
    With those that are called like it.
    """

    def scenario(at: str) -> Any:
        said(at, "topics", "create", name, "-r", "1")
        reset = ("reset-offsets", f"billing-{name}", "--topic", name, "--to-earliest", "--execute")
        said(at, "groups", *reset)
        typo = ("reset-offsets", f"biling-{name}", "--topic", name, "--to-earliest")
        return [run("groups", *typo, bootstrap=at).stderr.decode()] + [
            refused(at, "groups", *line.split())
            for line in (
                f"describe biling-{name}",
                "delete nosuch",
                "delete-offsets nosuch --all-topics",
            )
        ]

    found = both(scenario)

    similar = f"; did you mean 'billing-{name}'?"
    assert f"group 'biling-{name}' does not exist yet: --execute creates it{similar}" in found[0]
    assert f"group 'biling-{name}' does not exist{similar}" in found[1]
    assert ["driftlog: group 'nosuch' does not exist\n"] * 2 == found[2:]


# ── Kafka's console tools ──


def console(main_class: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """What Kafka's own tool prints."""
    quiet = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-XX:TieredStopAtLevel=1")
    done = subprocess.run(
        java_command(f"org.apache.kafka.tools.{main_class}", *arguments, jvm=quiet),
        input=stdin,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_properties_of_the_console_tools_mean_the_same(agent: DriftlogProcess, name: str) -> None:
    """
    What their producer reads, ours reads; what their consumer prints, ours prints.
    """
    at = agent.bootstrap
    how = ("parse.key=true", "key.separator=:", "null.marker=NONE")
    reading = [word for one in how for word in ("--reader-property", one)]
    text = b"k:v\nNONE:v\nk:NONE\n:\nk:v:w\n"
    for topic in (name, f"{name}-2"):
        said(at, "topics", "create", topic)
    console("ConsoleProducer", "--bootstrap-server", at, "--topic", name, *reading, stdin=text)
    said(at, "produce", f"{name}-2", *reading, stdin=text)
    said(at, "produce", name, "-H", "a=1", "-H", "b", stdin=b"with headers\n")
    form = ["print.key", "print.headers", "print.timestamp", "print.offset", "print.partition"]
    form = [f"{column}=true" for column in form] + ["key.separator=|", "null.literal=(none)"]
    printing = [word for one in form for word in ("--formatter-property", one)]
    where = ("--topic", name, "--partition", "0", "--max-messages", "6")

    theirs = console(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", at, "--offset", "earliest", *where, *printing),
    )
    ours = run("consume", *where, "--from-beginning", *printing, bootstrap=at)

    assert theirs == ours.stdout
    assert b"Partition:0|Offset:2|NO_HEADERS|k|(none)\n" in theirs
    read_by_both = [
        said(at, "consume", topic, "-o", "beginning", "-c", "5", "-f", "%K %k %S %s\n")
        for topic in (name, f"{name}-2")
    ]
    assert read_by_both[0] == read_by_both[1]


# ── Segments ──


def test_segments_are_read_from_the_directory(agent: DriftlogProcess, name: str) -> None:
    """
    What `segments seal` has made, without asking the agent; and how much of it there is.
    """
    at = agent.bootstrap
    said(at, "topics", "create", name, "-p", "2")
    said(at, "produce", name, "-p", "1", "-q", stdin=b"a\nb\nc\n")
    objects: Path = agent.directory / "objects"
    before = read(at, "segments", "list", name, "--dir", str(agent.directory))
    sealed = said(at, "segments", "seal", name)
    (segment,) = read(at, "segments", "list", name, "--store", str(objects))
    (topic,) = read(at, "segments", "describe", name, "--dir", str(agent.directory))
    table = said(at, "segments", "list", name, "--dir", str(agent.directory))

    assert before == []
    assert ["1", "3"] == sealed.splitlines()[-1].split()
    assert (1, 0, 3, 3) == tuple(segment[n] for n in ("partition", "base", "end", "records"))
    assert (objects / segment["key"]).stat().st_size == segment["size_bytes"]
    assert [0, 3] == [part["sealed_end"] for part in topic["partitions"]]
    assert [0, 1] == [part["segments"] for part in topic["partitions"]]
    assert segment["key"] in table
    assert "did you mean" in refused(at, "segments", "list", f"{name}x", "--store", str(objects))
    assert "is no driftlog bucket" in refused(
        at, "segments", "list", name, "--store", str(objects.parent)
    )
    assert "does not exist" in refused(at, "segments", "list", name, "--dir", "/nonexistent")
    assert "--store LOCATION" in refused(at, "segments", "list", name, status=2)
