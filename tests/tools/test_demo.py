"""`make demo` works as a person runs it: on a file, on the flights, on bad files, or cut short."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import components
from tests.support.process_usage import descendants
from tools.demo.__main__ import _compare
from tools.demo.answers import PARTITIONS, Answer, DemoError
from tools.demo.ndjson import MAX_LINE_BYTES, Lines
from tools.demo.terminal import Terminal

REPOSITORY = components.REPOSITORY


def command(folder: Path, *arguments: str) -> list[str]:
    """As the Makefile has it, with a folder of its own."""
    return [sys.executable, "-m", "tools.demo", "--dir", str(folder), *arguments]


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        command(folder, *arguments),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )


def small(path: Path) -> Path:
    """3,002 records: objects, an array, a string; blank lines and a Windows line end."""
    lines = [json.dumps({"id": i, **({"ä": None} if i % 3 == 0 else {})}) for i in range(3_000)]
    path.write_text("\n".join([*lines, "", "  ", "[1, 2]\r", '"text"']))
    return path


@pytest.mark.timeout(300)
def test_a_file_of_the_user_s_comes_out_as_it_went_in(tmp_path: Path) -> None:
    """
    Every line is a record, Spark's counts are those of the file, and the exit status says so.
    """
    components.java()

    ran = demo(tmp_path / "demo", str(small(tmp_path / "my records.ndjson")))

    assert 0 == ran.returncode, ran.stdout
    assert "3,002 records in through Kafka, out through Spark" in ran.stdout
    assert "topic my-records" in ran.stdout
    assert ["ä", "1,000", "the", "same"] in map(str.split, ran.stdout.splitlines())
    assert "Traceback" not in ran.stdout
    assert "WARN" not in ran.stdout
    assert "\x1b" not in ran.stdout, "colours where there is no terminal"


@pytest.mark.timeout(300)
def test_the_flights_are_all_there(tmp_path: Path) -> None:
    """
    336,776 flights in through Kafka; Spark's answers from the files are those of the CSV.
    """
    components.java()

    ran = demo(tmp_path / "demo")

    if "cannot fetch the flights" in ran.stdout:
        pytest.skip(ran.stdout.partition("cannot fetch")[2].splitlines()[0])
    assert 0 == ran.returncode, ran.stdout
    assert "336,776 records in through Kafka, out through Spark" in ran.stdout
    assert "EV 54,173 51,356 1,024,829 19.9554 the same" in " ".join(ran.stdout.split())
    assert "✘" not in ran.stdout
    # On a slow machine records of 2013 would expire before Spark counts them.
    (topic,) = (tmp_path / "demo").glob("log/objects/topics/*/*/topic/*.json")
    assert '"retention.ms":"-1"' in topic.read_text().replace(" ", "")


@pytest.mark.skipif(sys.platform != "linux", reason="who is whose child is read from /proc")
def test_interrupted_it_leaves_no_process_behind(tmp_path: Path) -> None:
    """
    Ctrl-C while it works: status 130, a line that says so, and nothing that it started lives on.
    """
    with subprocess.Popen(
        command(tmp_path / "demo", str(small(tmp_path / "records.ndjson"))),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        lines = until(running.stdout, "ready after")
        family = descendants(running.pid)[1:]
        running.send_signal(signal.SIGINT)
        lines += list(running.stdout)

    assert family, "there was no agent"
    assert [] == [pid for pid in family if Path(f"/proc/{pid}").exists()]
    assert 130 == running.returncode
    assert "Interrupted" in lines[-1]
    assert "Traceback" not in "".join(lines)


def until(lines: Iterator[str], text: str) -> list[str]:
    """The lines up to one with *text* in it."""
    seen: list[str] = []
    for line in lines:
        seen.append(line)
        if text in line:
            return seen
    raise AssertionError("".join(seen))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no lines"),
        (b"\n \r\n\n", "has no lines"),
        (b'{"a": 1}\n{"a": \n', "line 2: not JSON"),
        (b"a,b,c\n1,2,3\n", "line 1: not JSON"),
        (b'{"a": NaN}\n', "NaN is not a JSON number"),
        (b"\xff\xfe\x00\n", "line 1: not JSON"),
        (b"[" * 100_000 + b"\n", "line 1: not JSON"),
        (b'"' + b"x" * MAX_LINE_BYTES + b'"\n', "line 1: 1,000,002 bytes"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    """
    Before anything is started, and in words.
    """
    path = tmp_path / "bad.ndjson"
    path.write_bytes(content)

    with pytest.raises(DemoError) as raised:
        Lines(path)

    assert str(path) in str(raised.value)
    assert message in str(raised.value)


@pytest.mark.parametrize(("name", "message"), [("none.ndjson", "is not there"), ("", "not a file")])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, message: str) -> None:
    """
    A missing file and a folder: one line, status 1, nothing started.
    """
    ran = demo(tmp_path / "demo", str(tmp_path / name))

    assert 1 == ran.returncode
    assert message in ran.stdout.splitlines()[-1]
    assert not (tmp_path / "demo").exists()


def test_a_running_agent_s_folder_is_left_alone(tmp_path: Path) -> None:
    """
    What the last demo left is replaced, unless an agent runs on it.
    """
    fcntl = pytest.importorskip("fcntl")
    log = tmp_path / "demo" / "log"
    log.mkdir(parents=True)
    with (log / "lock").open("w") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)

        ran = demo(tmp_path / "demo", str(small(tmp_path / "records.ndjson")))

    assert 1 == ran.returncode
    assert f"(process {os.getpid()}): stop it first" in ran.stdout.splitlines()[-1]


def test_a_log_with_topics_of_the_user_s_is_left_alone(tmp_path: Path) -> None:
    """
    The demo says to run an agent on its log; what was produced there is not deleted.
    """
    log = tmp_path / "log"
    for name in ("lines", "precious"):
        (log / "objects" / "topics" / name).mkdir(parents=True)
    (log / "lock").touch()
    (tmp_path / "topic.txt").write_text("lines")
    (tmp_path / "in.ndjson").write_text("{}\n")

    ran = demo(tmp_path, str(tmp_path / "in.ndjson"))

    assert 1 == ran.returncode
    assert "would delete (precious)" in ran.stdout.splitlines()[-1]
    assert (log / "objects" / "topics" / "precious").is_dir()


def test_a_table_without_rows_has_its_head() -> None:
    """
    Records without a single field have nothing to count.
    """
    out = io.StringIO()
    Terminal(out).table(["field", "records"], [])
    assert ["field", "records"] == out.getvalue().split()


@pytest.mark.parametrize(
    "found",
    [
        {PARTITIONS: [[0, 1, 9, 5]], "fields": [["a", 2]]},
        {PARTITIONS: [[0, 1, 9, 5]], "fields": []},
        {PARTITIONS: [[0, 1, 9, 6]], "fields": [["a", 1]]},
        {PARTITIONS: [[0, 1, 9, 5]], "fields": [["a", 1], ["b", 1]]},
        {PARTITIONS: [[0, 1, 9, 5]]},
    ],
)
def test_another_answer_is_not_the_same(tmp_path: Path, found: Answer) -> None:
    """
    A row that differs, is missing or is too many is seen, and said.
    """
    path = tmp_path / "one.ndjson"
    path.write_text('{"a": 1}\n')
    data = Lines(path)
    expected: Answer = {**data.expected(), PARTITIONS: [[0, 1, 9, 5]]}
    out = io.StringIO()

    assert _compare(Terminal(out), data, expected, expected)
    assert not _compare(Terminal(out), data, expected, found)
    assert "differ" in out.getvalue()
