"""A batch that is left out of a segment, or stops sealing, for the wrong reason fails here.

Pure.
"""

from driftlog_agents.log.segments.batch_faults import BatchFault, fault_of, find_faults
from driftlog_tiering.batches.batch import Codec, build_batch
from driftlog_tiering.batches.batch_limits import LIGHT_BYTES, BatchLimits
from driftlog_tiering.batches.kernel_py import Record, encode_record
from tests.agents.log.lives import make_batch
from tests.agents.log.tiers import make_undecodable

LIMITS = BatchLimits()
SOUND = bytes(make_batch([b"x"]))
BAD = bytes(make_undecodable(0, 1))


def test_faults_are_found_up_to_the_first_batch_that_can_be_decoded() -> None:
    """The batches behind it belong to the next segment."""
    assert [BatchFault.CORRUPT] * 2 == find_faults([BAD, BAD], LIMITS)
    assert [BatchFault.CORRUPT, None] == find_faults([BAD, SOUND, BAD], LIMITS)


def test_a_batch_of_many_headers_is_large() -> None:
    """A header has two bytes and takes as long as many: a million of them are no light batch."""
    headers = tuple(("", None) for _ in range(140_000))
    section = encode_record(Record(0, 0, None, None, headers))
    batch = bytes(
        build_batch(
            section,
            base_offset=0,
            last_offset_delta=0,
            record_count=1,
            attributes=Codec.NONE,
            base_timestamp=1,
            max_timestamp=1,
            leader_epoch=0,
        )
    )

    assert len(batch) < LIGHT_BYTES // 10
    assert BatchFault.LARGE is fault_of(batch, LIMITS, LIGHT_BYTES)
    assert None is fault_of(batch, LIMITS, None)


def test_a_batch_over_a_limit_names_it() -> None:
    """The metric counts refused batches by limit."""
    many = bytes(make_batch([b"x"] * 3))

    assert BatchFault.RECORDS is fault_of(many, BatchLimits(records=2), LIGHT_BYTES)
    assert None is fault_of(many, LIMITS, LIGHT_BYTES)
