"""The record of an accepted loss reads back as it was stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.accepted_loss import (
    AcceptedLoss,
    decode_accepted_loss,
    encode_accepted_loss,
)
from driftlog_tiering.formats.bucket_files import CorruptFileError

offsets = st.integers(0, 2**63 - 1)
ranges = st.lists(offsets, min_size=2, max_size=2, unique=True).map(lambda two: tuple(sorted(two)))
losses = st.builds(
    AcceptedLoss,
    topic=st.text(max_size=20),
    tp=st.builds(TopicPartition, st.uuids(), st.integers(0, 2**31 - 1)),
    leader_epoch=st.integers(0, 2**31 - 1),
    session_id=st.text(max_size=20),
    accepted_at_ms=offsets,
    reasons=st.lists(st.text(max_size=9), max_size=3).map(tuple),
    lost=st.lists(ranges, max_size=3).map(tuple),
    objects=st.lists(st.text(max_size=9), max_size=3).map(tuple),
    sealed_end=st.integers(-1, 2**63 - 1),
    manifest_version=st.integers(-1, 2**63 - 1),
    goes_on_at=offsets,
)


@given(losses)
def test_what_is_stored_is_read_back(loss: AcceptedLoss) -> None:
    """
    Every member of it.
    """
    assert loss == decode_accepted_loss(encode_accepted_loss(loss))


@given(losses, st.integers(0), st.integers(0, 7))
def test_a_flipped_bit_is_noticed(loss: AcceptedLoss, byte: int, bit: int) -> None:
    """
    Wherever it is.
    """
    body = bytearray(encode_accepted_loss(loss))
    body[byte % len(body)] ^= 1 << bit

    with pytest.raises(CorruptFileError):
        decode_accepted_loss(body)
