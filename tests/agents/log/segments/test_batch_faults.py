"""A batch that is left out of a segment, or stops sealing, for the wrong reason fails here.

Pure.
"""

from driftlog_agents.log.segments.batch_faults import BatchFault, fault_of, find_faults
from driftlog_tiering.batches.batch_limits import LIGHT_BYTES, BatchLimits
from tests.agents.log.lives import make_batch
from tests.agents.log.tiers import make_undecodable

LIMITS = BatchLimits()
SOUND = bytes(make_batch([b"x"]))
BAD = bytes(make_undecodable(0, 1))


def test_faults_are_found_up_to_the_first_batch_that_can_be_decoded() -> None:
    """The batches behind it belong to the next segment."""
    assert [BatchFault.CORRUPT] * 2 == find_faults([BAD, BAD], LIMITS)
    assert [BatchFault.CORRUPT, None] == find_faults([BAD, SOUND, BAD], LIMITS)


def test_a_batch_over_a_limit_names_it() -> None:
    """The metric counts refused batches by limit."""
    many = bytes(make_batch([b"x"] * 3))

    assert BatchFault.RECORDS is fault_of(many, BatchLimits(records=2), LIGHT_BYTES)
    assert None is fault_of(many, LIMITS, LIGHT_BYTES)
