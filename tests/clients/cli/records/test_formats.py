"""The command reads formats, positions, times and durations as documented, in any order."""

import argparse
import os
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog.cli import parser
from driftlog.cli.common.parsers import in_our_order, key_values, parse, partitions
from driftlog.cli.common.times import parse_duration, parse_time
from driftlog.cli.records import lines
from driftlog.cli.records.formats import compile_format, from_json, to_json, unescape
from driftlog.cli.records.positions import (
    AtOffset,
    FromTime,
    Position,
    UntilTime,
    Where,
    parse_position,
)

pytestmark = pytest.mark.xdist_group("command")


@dataclass(frozen=True)
class Fake:
    """A record with the methods of confluent-kafka's."""

    k: bytes | None = None
    v: bytes | None = None
    h: list[tuple[str, bytes | None]] | None = None
    at: tuple[str, int, int] = ("flights", 2, 41)
    ts: tuple[int, int] = field(default=(1, 1_700_000_000_123))

    def topic(self) -> str:
        return self.at[0]

    def partition(self) -> int:
        return self.at[1]

    def offset(self) -> int:
        return self.at[2]

    def key(self) -> bytes | None:
        return self.k

    def value(self) -> bytes | None:
        return self.v

    def timestamp(self) -> tuple[int, int]:
        return self.ts

    def leader_epoch(self) -> None: ...

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.h


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\\nb\\tc\\r", b"a\nb\tc\r"),
        ("\\x41\\x1e\\0", b"A\x1e\x00"),
        ("\\\\n", b"\\n"),
        ("é", "é".encode()),
        ("\\", b"\\"),
    ],
)
def test_escapes_are_bytes(text: str, expected: bytes) -> None:
    """
    In formats and in delimiters; also NUL, at which kcat does not cut.
    """
    assert unescape(text) == expected


def test_a_format_without_its_token_is_refused_by_name() -> None:
    """
    And not printed as it stands.
    """
    with pytest.raises(ValueError, match="unknown token %q"):
        compile_format("%s %q")
    with pytest.raises(ValueError, match="write %%"):
        compile_format("100%")


texts = st.one_of(st.none(), st.binary(max_size=20))


@given(texts, texts, st.lists(st.tuples(st.text(max_size=5), texts), max_size=4))
def test_an_envelope_is_a_record_again(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    """
    Whatever bytes it has, null and empty apart: `consume -J | produce --json` loses nothing.
    """
    line = to_json(Fake(key, value, headers))
    record = from_json(line)

    assert b"\n" not in line
    assert (record.key, record.value, list(record.headers)) == (key, value, headers)
    assert record.timestamp_ms == 1_700_000_000_123
    assert record.partition is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"vlaue": 1}', "unknown field 'vlaue'"),
        ('{"partition": "x"}', "partition is not a number"),
        ('{"headers": "x"}', "headers are"),
        ('{"key_base64": "*"}', "key is not base64"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_reason(line: str, why: str) -> None:
    """
    A misspelt field would be a lost value.
    """
    with pytest.raises(ValueError, match=why):
        from_json(line.encode())


def test_json_values_are_written_as_json() -> None:
    """
    A value that is an object needs no quotes around its quotes.
    """
    record = from_json('{"key": 1, "value": {"n": "é"}, "headers": {"a": "b", "c": null}}'.encode())

    assert record.key == b"1"
    assert record.value == '{"n":"é"}'.encode()
    assert list(record.headers) == [("a", b"b"), ("c", None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", Where.BEGINNING),
        ("end", Where.END),
        ("stored", Where.STORED),
        ("42", AtOffset(42)),
        ("-10", AtOffset(-10)),
        ("s@1700000000000", FromTime(1_700_000_000_000)),
        ("e@2023-11-14T22:13:20", UntilTime(1_700_000_000_000)),
        ("s@2023-11-14T23:13:20.5+01:00", FromTime(1_700_000_000_500)),
        ("s@2023-11-14T22:13:20Z", FromTime(1_700_000_000_000)),
    ],
)
def test_positions_are_those_of_kcat(text: str, expected: Position) -> None:
    """
    And times may be written as people write them.
    """
    assert parse_position(text) == expected


def test_a_day_is_its_beginning_in_utc() -> None:
    """
    Wherever the person is: two of them mean the same records.
    """
    assert parse_time("1970-01-02") == 86_400_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [("P1D", 86_400_000), ("PT2H30M", 9_000_000), ("P1DT1.5S", 86_401_500), ("-PT1S", -1_000)],
)
def test_durations_are_those_of_iso_8601(text: str, ms: int) -> None:
    """
    As Kafka's tool has them.
    """
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["P", "PT", "1D", "", "P1H"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """
    With examples.
    """
    with pytest.raises(ValueError, match="P1DT2H30M"):
        parse_duration(text)


def test_configs_may_have_commas_in_brackets_or_not() -> None:
    """
    As Kafka's scripts have it: kafka-configs with brackets, kafka-topics without.
    """
    assert [("cleanup.policy", "compact,delete"), ("retention.ms", "1")] == key_values(
        "cleanup.policy=compact,delete,retention.ms=1"
    )
    assert [("cleanup.policy", "compact,delete"), ("retention.ms", "1")] == key_values(
        "cleanup.policy=[compact,delete],retention.ms=1"
    )


def test_partitions_are_lists_and_ranges() -> None:
    """
    0,2-4 is 0, 2, 3 and 4.
    """
    assert [0, 2, 3, 4] == partitions("0,2-4")
    with pytest.raises(argparse.ArgumentTypeError):
        partitions("1,x")


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("topics --list", "topics list"),
        ("topics -b h:1 --create --topic t", "topics create -b h:1 --topic t"),
        ("groups --reset-offsets --group g --execute", "groups reset-offsets --group g --execute"),
        ("groups --describe --group g --members", "groups describe --group g --members"),
        ("configs --alter --delete-config a", "configs alter --delete-config a"),
        ("topics list --json", "topics list --json"),
        ("topics --bogus", "topics --bogus"),
        ("consume t --group --list", "consume t --group --list"),
    ],
)
def test_actions_are_understood_as_kafkas_scripts_have_them(line: str, ours: str) -> None:
    """
    Who knows `kafka-topics.sh --list` need not look up ours.
    """
    assert ours.split() == in_our_order(parser(), line.split())


def test_words_may_stand_behind_options() -> None:
    """
    argparse forgets a list of words once an option came: `produce TOPIC -l FILE`.
    """
    options = parse(parser(), parser(), ["produce", "t", "-l", "a", "-z", "zstd", "b"])

    assert (["t", "a", "b"], "zstd", True) == (options.words, options.compression, options.lines)


@given(st.lists(st.binary(max_size=6).filter(lambda r: b"xy" not in r and not r.endswith(b"x"))))
def test_records_are_found_wherever_reading_stops(records: list[bytes]) -> None:
    """
    A delimiter may lie across two reads.
    """
    for size in (1, 2, 3, 1000):
        text = b"xy".join(records) + b"xy"
        read, write = os.pipe()
        try:
            os.write(write, text)
            os.close(write)
            found = list(lines.split(read, b"xy", lambda: None, chunk_bytes=size))
        finally:
            os.close(read)
        assert (records or [b""]) == found
