"""`driftlog produce` and `driftlog consume`, beside kcat, which they are to be mistaken for."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.batches import good, with_strange_header
from tests.clients.command import read, refused, run, said
from tests.clients.conftest import make_topic
from tests.clients.sockets import Raw
from tests.support.components import kcat
from tests.support.driftlog_process import DriftlogProcess, driftlog_command

pytestmark = pytest.mark.xdist_group("command")

RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"k1", b"v1", [("a", b"1"), ("b", None), ("c", b""), ("a", b"x,y")]),
    (b"k2", None, []),
    (b"", b"", []),
    (None, 'é\n"\\/\t'.encode(), [("only", b"one")]),
    (None, None, []),
    (b"last", b"value: with = signs", []),
]
FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def written(agent: DriftlogProcess) -> str:
    """A topic of one partition with RECORDS in it, a millisecond apart; they are old, and stay."""
    topic = make_topic(agent, retention_ms="-1")
    producer = Producer({"bootstrap.servers": agent.bootstrap, "log_level": 2})
    for n, (key, value, headers) in enumerate(RECORDS):
        producer.produce(topic, value, key, 0, headers=list(headers), timestamp=FIRST_MS + n)
    assert producer.flush(30) == 0
    return topic


def with_kcat(agent: DriftlogProcess, *arguments: str, stdin: bytes = b"") -> bytes:
    """What kcat prints; it must succeed."""
    done = subprocess.run(
        [str(kcat()), "-b", agent.bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored(agent: DriftlogProcess, topic: str, count: int) -> list[tuple[Any, ...]]:
    """Partition, key, value and headers of what is in *topic*, by confluent-kafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    parts = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, 0) for p in parts])
    found: list[tuple[Any, ...]] = []
    ended = 0
    deadline = time.monotonic() + 60
    while ended < len(parts) and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.2):
            if message.error():
                ended += 1
            else:
                headers = tuple(message.headers() or ())
                found.append((message.partition(), message.key(), message.value(), headers))
    consumer.close()
    assert len(found) == count, found
    return found


# ── consume ──


@pytest.mark.parametrize("null", [(), ("-Z",)], ids=["", "-Z"])
@pytest.mark.parametrize(
    "form",
    [
        ("-f", "%t [%p] at %o: key %k: %s\\n"),
        ("-f", "%K|%S|%T|%h|%%\\t\\x41\\n"),
        ("-f", "%R%s;"),
        ("-K", ":"),
        ("-K", "\\t", "-D", "\\n--\\n"),
        (),
    ],
    ids=lambda form: " ".join(form),
)
def test_formats_print_what_kcat_prints(
    agent: DriftlogProcess, written: str, form: tuple[str, ...], null: tuple[str, ...]
) -> None:
    """
    Byte for byte: null and empty keys and values, headers, line ends inside.
    """
    theirs = with_kcat(agent, "-C", "-t", written, "-o", "beginning", "-eq", *form, *null)
    ours = run("consume", written, "-e", *form, *null, bootstrap=agent.bootstrap)

    assert (0, theirs) == (ours.returncode, ours.stdout)


def test_the_envelope_is_that_of_kcat(agent: DriftlogProcess, written: str) -> None:
    """
    But for the broker, which confluent-kafka does not tell.
    """
    theirs = with_kcat(agent, "-C", "-t", written, "-o", "beginning", "-eqJ")
    ours = run("consume", written, "--from-beginning", "-e", "-J", bootstrap=agent.bootstrap)

    expected = [json.loads(line) for line in theirs.splitlines()]
    assert {1} == {line.pop("broker") for line in expected}
    assert expected == [json.loads(line) for line in ours.stdout.splitlines()]


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        (("-o", "beginning", "-c", "2"), [0, 1]),
        (("-o", "2", "-e"), [2, 3, 4, 5]),
        (("-o", "-2", "-e"), [4, 5]),
        (("-o", "end", "-e"), []),
        (("-o", f"s@{FIRST_MS + 4}", "-e"), [4, 5]),
        (("-o", f"s@{FIRST_MS + 1}", "-o", f"e@{FIRST_MS + 3}"), [1, 2]),
        (("-o", "e@2023-11-14T22:13:20.002"), [0, 1]),
        (("--from-beginning", "--timeout-ms", "8000"), [0, 1, 2, 3, 4, 5]),
        (("--partition", "0", "--offset", "3", "--max-messages", "1"), [3]),
        (("-o", "100", "-e"), []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_begins_and_ends_where_it_is_told(
    agent: DriftlogProcess, written: str, where: tuple[str, ...], offsets: list[int]
) -> None:
    """
    With kcat's switches, and those of Kafka's console consumer.
    """
    printed = said(agent.bootstrap, "consume", "-t", written, "-f", "%o\n", *where)

    assert offsets == [int(line) for line in printed.split()]


def test_an_offset_that_is_not_there_is_said(agent: DriftlogProcess, written: str) -> None:
    """
    librdkafka would go elsewhere without a word.
    """
    done = run("consume", written, "-o", "100", "-e", bootstrap=agent.bootstrap)

    assert f"{written} [0] has offsets 0 to 6: beginning at 6, not at 100" in done.stderr.decode()


def test_a_reader_that_has_enough_ends_it_quietly(agent: DriftlogProcess) -> None:
    """
    `driftlog consume … | head -1` is no failure, and nobody is told of a pipe.
    """
    topic = make_topic(agent)
    said(agent.bootstrap, "produce", topic, "-q", stdin=b"a line of text\n" * 20_000)
    command = driftlog_command()
    line = f"{command} consume {topic} -b {agent.bootstrap} --from-beginning | head -1; "
    done = subprocess.run(
        ["bash", "-c", line + 'echo "status ${PIPESTATUS[0]}"'],
        capture_output=True,
        check=False,
        timeout=60,
        text=True,
    )

    assert ("a line of text\nstatus 0\n", "") == (done.stdout, done.stderr)


@contextlib.contextmanager
def running(*arguments: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The command, which does not end by itself."""
    command = driftlog_command()
    assert command is not None
    process = subprocess.Popen(
        [command, *arguments],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_produce_ends_in_its_timeout_while_the_bucket_is_away(tmp_path: Path) -> None:
    """
    What is acknowledged is counted; the rest is unknown: message, count and exit status say so.
    """
    with DriftlogProcess(tmp_path / "data") as agent:
        topic = make_topic(agent)
        line = ("produce", topic, "-b", agent.bootstrap, "--timeout", "5")
        with running(*line, stdin=subprocess.PIPE) as it:
            assert it.stdin is not None
            it.stdin.write(b"one\n")
            it.stdin.flush()
            said(agent.bootstrap, "consume", topic, "--from-beginning", "-c", "1")
            folder = agent.directory / "objects" / "flush"
            folder.rename(tmp_path / "away")
            folder.write_bytes(b"no folder")
            began = time.monotonic()
            # (without --timeout it gives up after 300 s)
            _, err = it.communicate(b"two\nthree\n", timeout=150)
            took_s = time.monotonic() - began
        agent.kill()

    assert (3, True) == (it.returncode, 4 < took_s)
    text = err.decode()
    assert "line 2: unknown: may have been written" in text
    assert f"1 record written to {topic}" in text
    assert "2 unknown: may have been written" in text


def test_ctrl_c_ends_a_consumer_quietly(agent: DriftlogProcess, written: str) -> None:
    """
    What came is printed; the status is the shell's for Ctrl-C.
    """
    with running("consume", written, "-b", agent.bootstrap, "-o", "beginning", "-f", "%o ") as it:
        assert it.stdout is not None
        assert os.read(it.stdout.fileno(), 4) == b"0 1 "
        it.send_signal(signal.SIGINT)
        rest, err = it.communicate(timeout=30)

    assert (130, b"2 3 4 5 ", b"") == (it.returncode, rest, err)


def test_sigterm_commits_and_leaves_the_group(agent: DriftlogProcess) -> None:
    """
    At once: the next member need not wait until a session ends.
    """
    topic = make_topic(agent)
    group = f"g-{topic}"
    said(agent.bootstrap, "produce", topic, "-q", stdin=b"one\ntwo\n")
    with running("consume", topic, "-b", agent.bootstrap, "-G", group, "--from-beginning") as it:
        assert it.stdout is not None
        assert os.read(it.stdout.fileno(), 100) == b"one\ntwo\n"
        (before,) = read(agent.bootstrap, "groups", "describe", group)
        it.send_signal(signal.SIGTERM)
        _, err = it.communicate(timeout=30)
    (after,) = read(agent.bootstrap, "groups", "describe", group)

    assert (128 + signal.SIGTERM, b"") == (it.returncode, err)
    assert ("Stable", 1) == (before["state"], len(before["members"]))
    assert ("Empty", 0, 0) == (after["state"], len(after["members"]), after["lag"])


def test_records_are_printed_as_they_come(agent: DriftlogProcess) -> None:
    """
    Nobody waits for a buffer to be full.
    """
    topic = make_topic(agent)
    with running("consume", topic, "-b", agent.bootstrap, "-o", "beginning") as it:
        assert it.stdout is not None
        for n in range(2):
            said(agent.bootstrap, "produce", topic, stdin=b"record %d" % n)
            assert os.read(it.stdout.fileno(), 100) == b"record %d\n" % n


def test_consuming_what_is_not_there_names_what_is_like_it(
    agent: DriftlogProcess, written: str
) -> None:
    """
    At once, and the topic is not made by asking for it.
    """
    misspelt = f"{written[:-1]}-"
    assert f"did you mean '{written}'" in refused(agent.bootstrap, "consume", misspelt)
    assert "has no partition 7" in refused(agent.bootstrap, "consume", written, "-p", "7")
    assert misspelt not in said(agent.bootstrap, "topics", "list", "-q").split()


# ── produce ──


@pytest.mark.parametrize(
    ("switches", "text"),
    [
        ((), b"one\n\ntwo\nthree"),
        (("-K:",), b"a:b\nnokey\n:v\nk:\n:\nk:v:w\n"),
        (("-K:", "-Z"), b"a:b\nnokey\n:v\nk:\n:\n"),
        (("-K:", "-Z", "-k", "fixed"), b"a:b\nnokey\n:v\nk:\n"),
        (("-k", "fixed", "-H", "h=1", "-H", "e=", "-H", "n"), b"one\ntwo\n"),
        (("-D", "xy", "-K", "\\t"), b"a\tbxycxxyd"),
        (("-c", "2"), b"one\ntwo\nthree\n"),
        (("-z", "gzip", "-p", "0"), b"one\ntwo\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_writes_what_kcat_writes(
    agent: DriftlogProcess, switches: tuple[str, ...], text: bytes
) -> None:
    """
    Keys, values, nulls and headers of the same input.
    """
    theirs, ours = make_topic(agent), make_topic(agent)
    with_kcat(agent, "-P", "-t", theirs, *switches, stdin=text)
    said(agent.bootstrap, "produce", ours, *switches, stdin=text)

    count = len(with_kcat(agent, "-C", "-t", theirs, "-o", "beginning", "-eq", "-f", "x"))
    assert stored(agent, theirs, count) == stored(agent, ours, count)


def test_files_are_records_or_their_lines_are(agent: DriftlogProcess, tmp_path: Path) -> None:
    """
    As in kcat; and what was done is said.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb\n")
    two.write_bytes(b"c")
    whole, lines = make_topic(agent), make_topic(agent)
    done = run("produce", whole, str(one), str(two), bootstrap=agent.bootstrap)
    said(agent.bootstrap, "produce", lines, "-l", str(one), str(two))

    assert [b"a\nb\n", b"c"] == [value for _, _, value, _ in stored(agent, whole, 2)]
    assert [b"a", b"b", b"c"] == [value for _, _, value, _ in stored(agent, lines, 3)]
    assert f"2 records written to {whole} (5 B); each file is one record" in done.stderr.decode()
    assert "no such file" in refused(agent.bootstrap, "produce", whole, str(tmp_path / "no"))


def test_what_is_consumed_as_json_can_be_produced_again(agent: DriftlogProcess) -> None:
    """
    Bytes that are no text included; partitions are chosen anew.
    """
    source, target = make_topic(agent), make_topic(agent)
    producer = Producer({"bootstrap.servers": agent.bootstrap, "log_level": 2})
    for key, value, headers in [*RECORDS, (b"\xff", b"\xfe\x00", [("h", b"\xfd"), ("n", None)])]:
        producer.produce(source, value, key, 0, headers=list(headers))
    assert producer.flush(30) == 0
    printed = run("consume", source, "-e", "-J", bootstrap=agent.bootstrap).stdout
    said(agent.bootstrap, "produce", target, "--json", stdin=printed)

    assert stored(agent, source, 7) == stored(agent, target, 7)


@pytest.mark.parametrize("form", ["-J", "-f%h,%s\\n"])
def test_a_record_whose_headers_cannot_be_read_is_named(agent: DriftlogProcess, form: str) -> None:
    """
    What is before it is printed; values are printed to the end.
    """
    topic = make_topic(agent)
    with Raw(agent.port) as raw:
        for batch in [*[good(b"v")] * 20, with_strange_header(b"strange"), good(b"last")]:
            assert 0 == raw.produce(topic, {0: batch})[0].error_code
    done = run("consume", topic, "-e", form, bootstrap=agent.bootstrap)

    assert 1 == done.returncode
    assert 20 == done.stdout.count(b"\n")
    assert f"{topic} [0] at offset 20: the key of a header is not UTF-8" in done.stderr.decode()
    assert "-p 0 -o 21" in done.stderr.decode()
    values = run("consume", topic, "-e", bootstrap=agent.bootstrap).stdout
    assert b"v\n" * 20 + b"strange\nlast\n" == values


def test_a_hundred_thousand_lines_are_there_once_and_counted(agent: DriftlogProcess) -> None:
    """
    Through a pipe in pieces that cut lines anywhere; exact counts.
    """
    topic = make_topic(agent)
    text = b"".join(b"%d\n" % n for n in range(100_000))
    done = run("produce", topic, "-z", "zstd", bootstrap=agent.bootstrap, stdin=text)
    consumed = run("consume", topic, "-e", bootstrap=agent.bootstrap)

    assert f"100,000 records written to {topic} (477.4 KiB)" in done.stderr.decode()
    assert text == consumed.stdout


def test_each_record_that_is_refused_is_named(agent: DriftlogProcess) -> None:
    """
    The others are written, and the status says that it was not all.
    """
    topic = make_topic(agent, max_message_bytes="2000")
    big = os.urandom(3000).hex().encode()
    done = run("produce", topic, bootstrap=agent.bootstrap, stdin=b"a\n" + big + b"\nc\n")
    errors = done.stderr.decode()

    assert done.returncode == 1
    assert "driftlog: line 2: not written: " in errors
    assert "MSG_SIZE_TOO_LARGE" in errors
    assert f"2 records written to {topic} (2 B), 1 not written" in errors
    assert [b"a", b"c"] == [value for _, _, value, _ in stored(agent, topic, 2)]


def test_a_partition_that_is_not_there_is_named(agent: DriftlogProcess) -> None:
    """
    librdkafka's word for it is a local error.
    """
    topic = make_topic(agent)
    errors = refused(agent.bootstrap, "produce", topic, "-p", "5", stdin=b"a\n")

    assert f"line 1: not written: {topic} has no partition 5" in errors


def test_a_line_that_is_no_json_is_named_and_stops_it(agent: DriftlogProcess) -> None:
    """
    What was before it is written.
    """
    topic = make_topic(agent)
    lines = b'{"value": "good"}\n{"vlaue": "bad"}\n'
    errors = refused(agent.bootstrap, "produce", topic, "--json", stdin=lines)

    assert "stopped at line 2: unknown field 'vlaue'" in errors
    assert "the rest is not read" in errors
    assert "1 record written" in errors
    stored(agent, topic, 1)


def test_bad_lines_are_left_out_and_kept_where_that_is_asked_for(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    Each is named; those of --bad-lines may be repaired and produced again.
    """
    topic = make_topic(agent)
    lines, bad = tmp_path / "lines.ndjson", tmp_path / "bad.ndjson"
    lines.write_bytes(b'{"value": "a"}\n{"vlaue": "b"}\n{"value": "c"}\nno json\n')
    line = ("produce", topic, "--json", "-l", str(lines))
    skipped = run(*line, "--skip-bad", bootstrap=agent.bootstrap)
    kept = run(*line, "--bad-lines", str(bad), bootstrap=agent.bootstrap)

    assert (0, 0) == (skipped.returncode, kept.returncode)
    for errors in (skipped.stderr.decode(), kept.stderr.decode()):
        assert f"{lines}, line 2: left out: unknown field 'vlaue'" in errors
        assert f"{lines}, line 4: left out: not JSON" in errors
        assert "2 bad lines left out" in errors
        assert "2 records written" in errors
    assert b'{"vlaue": "b"}\nno json\n' == bad.read_bytes()
    assert [b"a", b"c"] * 2 == [value for _, _, value, _ in stored(agent, topic, 4)]


def test_a_topic_that_producing_creates_is_named(agent: DriftlogProcess) -> None:
    """
    A misspelt name shows; a topic that existed is not mentioned.
    """
    topic = f"t-{uuid.uuid4().hex[:12]}"
    first = run("produce", topic, bootstrap=agent.bootstrap, stdin=b"a\n")
    second = run("produce", topic, bootstrap=agent.bootstrap, stdin=b"b\n")

    assert f"topic {topic} was created" in first.stderr.decode()
    assert "was created" not in second.stderr.decode()


@pytest.mark.parametrize("name", ["bad name", "..", "x" * 250, "ä"])
def test_an_impossible_topic_is_refused_with_the_rule(agent: DriftlogProcess, name: str) -> None:
    """
    Nobody is told to create what cannot be created.
    """
    produced = refused(agent.bootstrap, "produce", name, stdin=b"a\n", status=2)
    described = refused(agent.bootstrap, "topics", "describe", name)

    for errors in (produced, described):
        assert "1 to 249 letters, digits, '.', '_' and '-'" in errors
        assert "topics create" not in errors


def test_ctrl_c_writes_what_was_read(agent: DriftlogProcess) -> None:
    """
    And counts it; the rest of the input is not touched.
    """
    topic = make_topic(agent)
    with running("produce", topic, "-b", agent.bootstrap, stdin=subprocess.PIPE) as it:
        assert it.stdin is not None
        it.stdin.write(b"one\ntwo\nthr")
        it.stdin.flush()
        deadline = time.monotonic() + 30
        while (
            read(agent.bootstrap, "topics", "describe", topic)[0]["partitions"][0]["latest_offset"]
            < 2
            and time.monotonic() < deadline
        ):
            time.sleep(0.2)
        it.send_signal(signal.SIGINT)
        _, err = it.communicate(timeout=30)

    assert it.returncode == 130
    assert f"2 records written to {topic} (6 B)" in err.decode()
    stored(agent, topic, 2)


# ── The terminal ──


def on_a_terminal(
    *arguments: str, bootstrap: str, stdin: bytes = b"", until: str = ""
) -> tuple[int, str]:
    """Run with a terminal as standard output and error; the status and what it shows.

    *until*: a pattern; standard input does not end before it is shown.
    """
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "DRIFTLOG_BOOTSTRAP": bootstrap}
    environment.pop("NO_COLOR", None)
    with running(
        *arguments, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, env=environment
    ) as it:
        os.close(theirs)
        assert it.stdin is not None
        it.stdin.write(stdin)
        it.stdin.flush()
        shown = b""
        with contextlib.suppress(OSError):  # Linux ends a terminal so
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
                if re.search(until.encode(), shown):
                    it.stdin.close()
        it.wait(30)
    os.close(ours)
    return it.returncode, shown.decode()


def test_a_terminal_gets_colour_and_thousands_and_a_pipe_does_not(agent: DriftlogProcess) -> None:
    """
    What is piped is for programs: plain digits, nothing cut off.
    """
    topic = f"a-name-that-is-long-{uuid.uuid4().hex * 4}"
    said(agent.bootstrap, "produce", topic, "-q", stdin=b"x\n" * 1_234)
    status, shown = on_a_terminal("topics", "describe", topic, bootstrap=agent.bootstrap)
    piped = said(agent.bootstrap, "topics", "describe", topic)

    assert status == 0
    assert "\x1b[1mpartition" in shown
    assert "1,234" in shown
    assert "\x1b" not in piped
    assert "1234" in piped.split()
    assert topic in piped


def test_a_terminal_sees_how_far_it_is(agent: DriftlogProcess) -> None:
    """
    While there is more to come; then one line that stays.
    """
    topic = make_topic(agent)
    progress = r"\r\d records? written, \d on the way, \d B"
    status, shown = on_a_terminal(
        "produce", topic, bootstrap=agent.bootstrap, stdin=b"a\nb\nc\n", until=progress
    )

    assert status == 0
    assert re.search(progress, shown)
    assert shown.endswith(f"driftlog: 3 records written to {topic} (3 B)\r\n")


def test_who_types_records_sees_no_progress_line(agent: DriftlogProcess) -> None:
    """
    One line says how it ends; after that there is what is typed, and what became of it.
    """
    topic = make_topic(agent)
    ours, theirs = pty.openpty()
    shown = b""
    with running(
        "produce", topic, "-b", agent.bootstrap, stdin=theirs, stdout=theirs, stderr=theirs
    ) as it:
        os.close(theirs)
        with contextlib.suppress(OSError):  # Linux ends a terminal so
            for typed in (b"one\n", b"two\n", b"\x04", b""):
                if typed == b"one\n":
                    while b"Ctrl-D ends\r\n" not in shown:
                        shown += os.read(ours, 1 << 16)
                else:
                    time.sleep(1)  # a progress line would come after 0.4 s
                os.write(ours, typed)
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
        it.wait(30)
    os.close(ours)

    assert it.returncode == 0
    assert [
        f"driftlog: writing to {topic}: one record a line, Ctrl-D ends",
        "one",
        "two",
        f"driftlog: 2 records written to {topic} (6 B)",
    ] == shown.decode().splitlines()
