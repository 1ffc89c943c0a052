"""An object of a rewrite that lacks a batch, or has one where its footer does not say, fails here.

Pure.
"""

from array import array
from dataclasses import replace

import pytest

from driftlog_agents.log.consolidation.object_layout import (
    encode,
    how_many_fit,
    lay_out,
    lay_out_most,
)
from driftlog_metadata.transactions.flush_transactions import RECORDS_PER_TXN
from driftlog_tiering.formats.flush_object import (
    CorruptFlushObjectError,
    RestoreFacts,
    decode_footer,
)
from tests.agents.log.consolidation.test_policy import PLACES, SETTINGS, footer_of


def test_old_and_new_records_fit_into_one_transaction() -> None:
    """
    The first records are replaced, as many as fit with their new ones.
    """
    footers = [footer_of([(PLACES[0], n, 1, 600)]) for n in range(RECORDS_PER_TXN)]

    count, objects = lay_out_most(footers, lambda _: 0, 600)

    assert count == len(objects)
    assert RECORDS_PER_TXN / 3 <= count + len(objects) <= RECORDS_PER_TXN


def test_objects_are_cut_between_partitions_and_hold_them_in_order() -> None:
    """
    Sorted by topic id, partition and offset, whichever flush it was; a partition that does not
    fit what is left of an object begins another one.
    """
    one = footer_of([(PLACES[0], 0, 1, 400), (PLACES[2], 0, 2, 100)])
    two = footer_of([(PLACES[0], 1, 1, 400), (PLACES[1], 0, 1, 300), (PLACES[2], 2, 1, 50)])

    objects = lay_out([one, two], lambda _: 0, 1_000)

    assert [[(0, 0), (1, 1)], [(1, 0), (0, 0), (1, 2)]] == [
        [(run.source, run.base) for run in new.runs] for new in objects
    ]
    assert [800, 450] == [new.size_bytes for new in objects]
    turned = [
        [(1 - run.source, run.base) for run in new.runs]
        for new in lay_out([two, one], lambda _: 0, 1_000)
    ]
    assert turned == [[(run.source, run.base) for run in new.runs] for new in objects]


def test_what_is_sealed_is_left_out_from_the_batch_on_that_is_not() -> None:
    """
    A slice that is sealed in part leaves its rest; one that is sealed leaves nothing.
    """
    footer = footer_of(
        [(PLACES[0], 0, 5, 10), (PLACES[0], 5, 5, 20), (PLACES[0], 10, 5, 30), (PLACES[1], 0, 1, 9)]
    )
    sealed = {PLACES[0]: 5, PLACES[1]: 1}

    ((run,),) = [new.runs for new in lay_out([footer], lambda tp: sealed[tp], 1_000)]

    assert (5, 1, 2, 50) == (run.base, run.first, run.count, run.size_bytes)
    assert [] == lay_out([footer], lambda _: 15, 1_000)


def test_a_gap_of_offsets_is_kept_as_one() -> None:
    """
    Another session led in between: its batches are elsewhere.
    """
    footers = [footer_of([(PLACES[0], 0, 5, 10)]), footer_of([(PLACES[0], 9, 1, 10)])]
    (new,) = lay_out(footers, lambda _: 0, 1_000)

    encoded, _ = encode(new, footers, "s", 7)

    assert [(0, 5), (9, 10)] == [(s.base, s.end) for s in decode_footer(encoded).slices()]


def test_two_flushes_with_the_same_offsets_are_damage() -> None:
    """
    Nothing is made of them: which of them is the log, nobody could say afterwards.
    """
    footers = [footer_of([(PLACES[0], 0, 5, 10)]), footer_of([(PLACES[0], 4, 1, 10)])]

    with pytest.raises(CorruptFlushObjectError, match="two flushes have offset 4"):
        lay_out(footers, lambda _: 0, 1_000)


def test_a_rewrite_has_so_many_batches_in_memory() -> None:
    """
    And two footers at least, or it would never come to anything.
    """
    settings = replace(SETTINGS, batches=5)
    footers = [footer_of([(PLACES[0], n, 1, 1) for n in range(size)]) for size in (2, 3, 1)]

    assert 2 == how_many_fit(footers, settings)
    assert 3 == how_many_fit(footers, replace(SETTINGS, batches=6))
    assert 2 == how_many_fit(footers, replace(SETTINGS, batches=1))


def test_a_rewrite_keeps_what_restore_needs() -> None:
    """
    Of a footer that says it, beside one of an older release, whose batches stay unknown.
    """
    old = footer_of([(PLACES[0], 0, 5, 10), (PLACES[1], 0, 1, 10)])
    facts = RestoreFacts(("x",), array("q", [4]), array("q", [2]))
    newer = replace(footer_of([(PLACES[0], 5, 1, 10)]), facts=facts)
    (new,) = lay_out([old, newer], lambda _: 0, 1_000)

    encoded, _ = encode(new, [old, newer], "s", 7, (1, 3))
    found = decode_footer(encoded).facts

    assert found is not None
    names = dict(zip(decode_footer(encoded).topic_ids, found.topic_names, strict=True))
    assert {PLACES[0].topic_id: "x"} | names == names
    assert ([-1, 4, -1], [-1, 2, -1]) == (list(found.epoch_starts), list(found.log_starts))
    assert (1, 3) == (found.level, found.index)
