"""``leftovers.json``: what an operator, a later start and the replay command read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.local.leftovers import (
    Leftovers,
    PartitionLeftovers,
    decode_leftovers,
)
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats.stored_json import encode_json

counts = st.integers(0, 2**63 - 1)
of_partition = st.builds(
    PartitionLeftovers,
    reason=st.text(max_size=9),
    topic=st.none() | st.text(max_size=9),
    first_offsets=st.dictionaries(counts, counts, max_size=3),
    batches=counts,
    records=counts,
    size_bytes=counts,
)
leftovers = st.builds(
    Leftovers,
    session_id=st.text("0123456789abcdef", min_size=32, max_size=32),
    set_aside_at_ms=st.none() | counts,
    partitions=st.dictionaries(
        st.builds(TopicPartition, st.uuids(), st.integers(0, 2**31 - 1)), of_partition, max_size=4
    ),
)


@given(leftovers)
def test_what_is_written_is_read(found: Leftovers) -> None:
    """
    A later start, or the command, knows all that was noted.
    """
    assert found == decode_leftovers(found.encode())


@given(leftovers, st.data())
def test_damage_is_found(found: Leftovers, data: st.DataObject) -> None:
    """
    A note that would say something else makes its directory wait for a person.
    """
    damaged = bytearray(found.encode())
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))

    with pytest.raises(CorruptError):
        decode_leftovers(bytes(damaged))


@pytest.mark.parametrize(
    "edit",
    [
        {"session_id": None},
        {"set_aside_at_ms": -1},
        {"partitions": {}},
        {"partitions": [{}]},
        {"partitions": [[]]},
    ],
)
def test_a_note_of_another_form_is_not_believed(edit: dict[str, object]) -> None:
    """
    Each member has its type, whoever wrote a sum over it.
    """
    fields = {"session_id": "s", "set_aside_at_ms": None, "partitions": []} | edit

    with pytest.raises(CorruptError):
        decode_leftovers(encode_json("driftlog.leftovers", 2, fields))


def test_a_note_of_an_earlier_release_is_named_as_such() -> None:
    """
    Version 1 said what was forwarded: nobody can go on with that.
    """
    with pytest.raises(CorruptError, match="an earlier release"):
        decode_leftovers(encode_json("driftlog.leftovers", 1, {"partitions": []}))


@pytest.mark.parametrize(
    ("epoch", "offset", "expected"),
    [(3, 9, False), (3, 10, True), (3, 11, True), (4, 99, False), (7, 0, True)],
)
def test_a_note_covers_what_is_behind_the_first_batch_of_an_epoch(
    epoch: int, offset: int, expected: bool
) -> None:
    """
    What stood in front of it has its place: a later start puts it there.
    """
    of = PartitionLeftovers("why", first_offsets={3: 10, 7: 0})

    assert expected == of.covers(epoch, offset)
