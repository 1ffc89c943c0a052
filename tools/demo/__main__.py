"""The demo, step by step.

    python -m tools.demo [FILE.ndjson] [--dir DIR]

    data ──Kafka client──▶ agent ──▶ flush objects ──seal──▶ Parquet ──Spark──▶ the answer
      └────────────────────── plain Python ─────────────────────────────────▶ the same answer?

Exit status: 0 the answers are equal, 1 they are not, or something failed, 130 interrupted.

Root.
"""

import argparse
import fcntl
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final

from tools.demo import processes
from tools.demo.answers import PARTITIONS, Answer, DemoError, Input, Section, different_rows
from tools.demo.bucket import PUT_DOLLARS, holdings
from tools.demo.flights import Flights
from tools.demo.kafka import Acknowledged, ConsumerThread, create_topic, produce
from tools.demo.ndjson import Lines
from tools.demo.terminal import Terminal, megabytes, terminal

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_INTERRUPTED: Final = 130
_MADE: Final = "topic.txt"
"""File beside the log: the topic that the last demo made in it."""


def main() -> int:
    """Run the demo; returns its exit status."""
    options = _options()
    screen = terminal()
    folder: Path = options.dir
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # As Ctrl-C: processes are stopped.
    try:
        return _run(screen, options.input, folder)
    except DemoError as error:
        first, *others = str(error).splitlines()
        screen.line()
        screen.verdict(first, good=False)
        for line in others:
            screen.line(line)
    except KeyboardInterrupt:
        screen.line()
        screen.line("Interrupted.  Everything that was started is stopped.")
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001  # the user gets a line, and a file to send us
        folder.mkdir(parents=True, exist_ok=True)
        report = folder / "demo-error.txt"
        report.write_text(traceback.format_exc())
        screen.line()
        screen.verdict(f"a bug in the demo: {error!r}", good=False)
        screen.line(f"What happened is in {_shown(report)}")
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make demo",
        description="A Kafka client in, Parquet, Spark out; and whether the answer is right.",
    )
    parser.add_argument(
        "input",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="newline-delimited JSON; default: the flights out of New York City in 2013",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=_REPOSITORY / "demo-data",
        metavar="DIR",
        help="where the log is left for you to look at (default: demo-data)",
    )
    return parser.parse_args()


def _run(screen: Terminal, path: Path | None, folder: Path) -> int:
    begin = time.monotonic()
    screen.title("driftlog: a Kafka log whose disk is a bucket")

    screen.step("The data")
    screen.waiting("fetching and reading the flights" if path is None else f"reading {path}")
    data: Input = Flights() if path is None else Lines(path)
    screen.line(f"{data.summary()}  ({megabytes(data.size_bytes)})")
    screen.dim(f"from {_shown(data.path)}{'' if path else ', sha256 as pinned'}")

    directory, logs = _clean(folder, data.name)
    screen.step("An agent, with its metadata and its objects in a directory")
    screen.dim(f"$ driftlog dev --dir {_shown(directory)} --listener 127.0.0.1:0")
    started = time.monotonic()
    with processes.agent(directory, logs) as agent:
        screen.line(f"ready after {time.monotonic() - started:.1f} s at {agent.bootstrap}")
        acknowledged = _produce_and_consume(screen, agent, data)

        screen.step("Seal: the log becomes Parquet now, and not when it is due")
        screen.dim(f"$ driftlog segments seal {data.name} --bootstrap-server {agent.bootstrap}")
        screen.waiting("sealing")
        for line in processes.seal(agent.bootstrap, data.name, logs, agent.check).splitlines():
            screen.line(line)
        found = _ask_spark(screen, data, directory / "objects", logs, agent)
        expected = {**data.expected(), PARTITIONS: acknowledged.table()}
        equal = _compare(screen, data, expected, found)

    screen.step("What the bucket holds now")
    _show_bucket(screen, data, acknowledged, directory / "objects")
    _next(screen, data, directory, path)
    screen.line()
    seconds = time.monotonic() - begin
    screen.verdict(
        f"{data.count:,} records in through Kafka, out through Spark, in {seconds:.0f} s: "
        + ("the same answer" if equal else "NOT the same answer"),
        good=equal,
    )
    return 0 if equal else 1


def _clean(folder: Path, topic: str) -> tuple[Path, Path]:
    """Make fresh folders for the log and for the output of processes; remove the last run's.

    Raises:
        DemoError: an agent runs on the folder, or it is not the demo's, or has topics that the demo
            did not make.
    """
    directory, logs = folder / "log", folder / "output"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (directory / "lock").exists():
            _check_unlocked(directory)
        elif directory.exists() and any(directory.iterdir()):
            raise DemoError(f"{_shown(directory)} is not what a demo left: choose another --dir")
        _check_topics(folder)
        for path in (directory, logs):
            shutil.rmtree(path, ignore_errors=True)
        logs.mkdir()
        (folder / _MADE).write_text(topic)
    except OSError as error:
        raise DemoError(f"{_shown(folder)} cannot be used: {error.strerror}") from error
    return directory, logs


def _check_topics(folder: Path) -> None:
    topics = folder / "log" / "objects" / "topics"
    there = {path.name for path in topics.iterdir()} if topics.is_dir() else set()
    made = folder / _MADE
    others = sorted(there - {made.read_text() if made.is_file() else Flights.name})
    if others:
        raise DemoError(
            f"{_shown(folder / 'log')} has topics that the demo did not make, and would delete "
            f"({', '.join(others)}): move it away, or remove it"
        )


def _check_unlocked(directory: Path) -> None:
    with (directory / "lock").open("rb+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = lock.read(20).decode(errors="replace").strip()
            raise DemoError(
                f"an agent runs on {_shown(directory)} (process {holder}): stop it first"
            ) from error


def _produce_and_consume(screen: Terminal, agent: processes.Agent, data: Input) -> Acknowledged:
    screen.step(f"Produce, and consume at the same time: topic {data.name}")
    screen.dim("confluent_kafka, a producer and an assigned consumer, settings: bootstrap.servers")
    create_topic(agent.bootstrap, data.name, data.partitions)
    begin = time.monotonic()
    reading = ConsumerThread(agent.bootstrap, data.name, data.partitions, data.count, data.describe)
    with reading:

        def tick(done: int) -> None:
            agent.check()
            text = f"{done:>9,} acknowledged  {reading.seen.records:>9,} consumed"
            screen.progress(done, data.count, text)

        acknowledged = produce(agent.bootstrap, data.name, data.partitions, data.records(), tick)
        seconds = time.monotonic() - begin
        meanwhile = reading.seen.records
        reading.catch_up(data.count, lambda: tick(data.count))
    for sample in reading.seen.samples:
        screen.line(sample)
    screen.line(
        f"{acknowledged.records:,} records acknowledged in {seconds:.1f} s: they are in the bucket "
        f"and committed"
    )
    screen.line(
        f"{meanwhile:,} of them were consumed before the last one was acknowledged, all now"
    )
    return acknowledged


def _ask_spark(
    screen: Terminal, data: Input, objects: Path, logs: Path, agent: processes.Agent
) -> Answer:
    screen.step("Spark, straight from the files: no broker in the way")
    screen.dim(f'records = read_topic(spark, "{_shown(objects)}", "{data.name}")')
    screen.dim(data.spark_code)
    screen.waiting("starting Spark and asking it")
    said: dict[str, Any] = processes.spark(str(objects), data.name, data.query, logs, agent.check)
    screen.line(
        f"Spark started in {said['start_seconds']:.1f} s, answered in {said['query_seconds']:.1f} s"
    )
    answer: Answer = said["answer"]
    return answer


def _compare(screen: Terminal, data: Input, expected: Answer, found: Answer) -> bool:
    screen.step("The same question to the original, in plain Python")
    partitions = Section(
        table=PARTITIONS,
        title="Records by partition: acknowledged, and in the files",
        columns=("partition", "records", "bytes of values", "sum of CRC-32s"),
    )
    right = True
    for i, section in enumerate((partitions, *data.sections)):
        if i:
            screen.line()
        theirs, ours = found.get(section.table, []), expected[section.table]
        rows = {_key(row): row for row in theirs}
        shown = ours
        if section.largest_of_column is not None:
            column = section.largest_of_column
            shown = sorted(ours, key=lambda row: -float(row[column] or 0))
        screen.line(section.title)
        screen.table(
            (*section.columns, "Spark says"),
            [
                (*row, "the same" if rows.get(_key(row)) == row else str(rows.get(_key(row))))
                for row in shown[: section.rows_shown]
            ],
        )
        wrong = different_rows(ours, theirs)
        right = right and not wrong
        rest = f" ({len(ours):,} rows compared)" if len(ours) > section.rows_shown else ""
        screen.verdict(f"equal{rest}" if not wrong else f"{wrong:,} rows differ", good=not wrong)
    return right


def _key(row: list[Any]) -> tuple[Any, ...]:
    """The first cell of a row, and its words."""
    return tuple(cell for i, cell in enumerate(row) if i == 0 or isinstance(cell, str))


def _show_bucket(screen: Terminal, data: Input, acknowledged: Acknowledged, objects: Path) -> None:
    held = holdings(objects)
    screen.table(
        ("objects", "", "kind"),
        [(one.objects, megabytes(one.size_bytes), one.kind) for one in held],
    )
    values = sum(tally.value_bytes for tally in acknowledged.partitions)
    parquet = sum(one.size_bytes for one in held if one.kind.startswith("sealed segments"))
    screen.line()
    screen.line(
        f"The original: {megabytes(data.size_bytes)}.  As record values: {megabytes(values)}.  "
        f"As Parquet: {megabytes(parquet)}."
    )
    puts = sum(one.objects for one in held)
    screen.line(f"In S3, {puts:,} PUTs cost ${puts * PUT_DOLLARS:.4f}.")
    screen.line(f"It is all in {_shown(objects)}")


def _next(screen: Terminal, data: Input, directory: Path, path: Path | None) -> None:
    screen.step("What to try next")
    screen.line("The same log again, where it was left, at 127.0.0.1:9092:")
    screen.dim(f"  .venv/bin/driftlog dev --dir {_shown(directory)}")
    screen.line("Read it with any Kafka client:")
    screen.dim(f"  kcat -b 127.0.0.1:9092 -C -t {data.name} -p 0 -o beginning -c 3")
    screen.line("Look at the Parquet without any of ours:")
    screen.dim(
        '  .venv/bin/python -c "import glob, pyarrow.parquet as p; '
        f"[print(p.read_metadata(f)) for f in glob.glob('{_shown(directory)}/objects/topics/"
        "*/*/*/*.parquet')]\""
    )
    if path is None:
        screen.line("This on data of your own, one JSON text a line:")
        screen.dim("  make demo INPUT=file.ndjson")


def _shown(path: Path) -> str:
    """Relative to the working directory, for paths inside it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


if __name__ == "__main__":
    sys.exit(main())
