"""The oracle of latest values would pass a table that lacks a write: one planted breach a test."""

from dataclasses import replace

import pytest

from tests.chaos.compacted.oracle import Reading, Record, Retention, TableOracle, Verdict
from tests.chaos.records import Origin, TopicPartition

AT = TopicPartition("t", 0)
TOMBSTONES_S = 5.0
RECORDS_S = 60.0


class Story:
    """A writer of offsets 0 to 5, one a second, and what a reader is shown after compaction."""

    def __init__(self) -> None:
        self.oracle = TableOracle({AT: Retention(TOMBSTONES_S, RECORDS_S)})
        self.records: dict[int, Record] = {}
        for key, value in (
            (b"a", b"1"),
            (b"b", b"2"),
            (b"a", b"3"),
            (b"c", b"4"),
            (b"b", None),
            (b"a", b"5"),
        ):
            self.write(key, value)
        for old in (0, 1, 2):
            del self.records[old]

    def write(self, key: bytes, value: bytes | None) -> None:
        offset = len(self.records)
        origin = self.oracle.sent(AT, "w", key, value, float(offset))
        self.oracle.acknowledged(AT, origin, offset)
        self.records[offset] = Record(offset=offset, key=key, value=value, origin=origin)

    def read(
        self,
        *,
        began_s: float = 6.0,
        took_s: float = 0.5,
        low: int = 0,
        high: int = 6,
        end: int = 6,
    ) -> None:
        self.oracle.read(
            Reading(
                reader="r",
                at=AT,
                began_s=began_s,
                ended_s=began_s + took_s,
                low=low,
                high=high,
                end=end,
                records=tuple(self.records.values()),
            )
        )

    def verdict(self) -> Verdict:
        return self.oracle.judge()


def test_a_compacted_table_keeps_all_promises() -> None:
    """
    Each key has its newest write, and the tombstone is there or, later, gone.
    """
    story = Story()
    story.read()
    del story.records[4]
    story.read(began_s=4 + TOMBSTONES_S)

    verdict = story.verdict()

    assert [] == verdict.violations
    assert (6, 0, 2, 5) == (
        verdict.acknowledged,
        verdict.unknown,
        verdict.readings,
        verdict.records_read,
    )
    assert 1 == verdict.tombstones_gone


@pytest.mark.parametrize("old", [0, None], ids=["an older value", "nothing"])
def test_a_reader_that_ends_without_the_newest_value_is_noticed(old: int | None) -> None:
    """
    With an older value of the key, and with nothing of it.
    """
    story = Story()
    if old is not None:
        story.records[0] = Record(offset=0, key=b"a", value=b"1", origin=Origin("w", 0))
        story.records = dict(sorted(story.records.items()))
    del story.records[5]
    story.read()

    (violation,) = story.verdict().violations

    assert "b'a' is" in violation
    assert "offset 5 was acknowledged, a value" in violation


def test_a_tombstone_that_goes_too_early_is_noticed() -> None:
    """
    A reader may have read the older value before.
    """
    story = Story()
    del story.records[4]
    story.read(began_s=4 + TOMBSTONES_S - 1)

    (violation,) = story.verdict().violations

    assert "offset 4 was acknowledged, a tombstone" in violation


def test_an_older_value_that_outlives_its_tombstone_is_noticed() -> None:
    """
    The tombstone is gone and the value is back, though the reading was short.
    """
    story = Story()
    del story.records[4]
    story.records[1] = Record(offset=1, key=b"b", value=b"2", origin=Origin("w", 1))
    story.records = dict(sorted(story.records.items()))
    story.read(began_s=20.0)

    (violation,) = story.verdict().violations

    assert "b'b' is Record(offset=1" in violation


def test_a_record_that_was_not_written_so_is_noticed() -> None:
    """
    Another value, an origin that wrote nothing, an offset that was not told.
    """
    story = Story()
    good = story.records[5]
    story.records[5] = replace(good, value=b"6")
    story.read()
    story.records[5] = replace(good, origin=None)
    story.read()
    story.records[6] = replace(good, offset=6)
    del story.records[5]
    story.read(high=7, end=7)

    wrong = "\n".join(story.verdict().violations)

    assert "offset 5, r: not as it was sent: " in wrong
    assert "offset 5, r: nothing sent this: " in wrong
    assert "offset 6, r: " in wrong
    assert "was told offset 5" in wrong


def test_a_reading_that_goes_back_or_ends_early_is_noticed() -> None:
    """
    Offsets ascend, the end is not below the high watermark, bounds never go back.
    """
    story = Story()
    story.records = dict(reversed(story.records.items()))
    story.read(high=7)
    story.read(began_s=7.0, low=0, high=3)

    wrong = "\n".join(story.verdict().violations)

    assert "4 follows 5" in wrong
    assert "ends at 6, the high watermark was 7" in wrong
    assert "the log is [0, 3), and was [0, 7)" in wrong


def test_a_write_that_its_client_gave_up_may_be_there_or_not() -> None:
    """
    It counts as unknown, and a reader may end with it.
    """
    story = Story()
    origin = story.oracle.sent(AT, "w", b"c", b"7", 6.0)
    story.oracle.failed(origin, "_MSG_TIMED_OUT")
    story.read(began_s=7.0)
    story.records[6] = Record(offset=6, key=b"c", value=b"7", origin=origin)
    story.read(began_s=8.0, high=7, end=7)

    verdict = story.verdict()

    assert [] == verdict.violations
    assert (1, {"_MSG_TIMED_OUT": 1}) == (verdict.unknown, dict(verdict.failed))
