"""A restored partition gives an offset, or a leader epoch, out twice."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.restore.evidence import PartitionFacts
from driftlog_agents.restore.partition_plan import plan_partition
from driftlog_metadata.schema.keys import INT32_MAX
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifest import LeaderEpoch, empty_manifest
from tests.agents.restore.bucket_model import TOPIC

EMPTY = empty_manifest("t", TopicPartition(TOPIC, 0))
offsets = st.integers(0, 2**62)


@given(
    st.integers(0, 2**40),
    offsets,
    offsets,
    st.integers(-1, INT32_MAX),
    st.lists(st.integers(-1, INT32_MAX), max_size=3),
    st.lists(st.integers(-1, 2**63 - 1), max_size=4),
)
def test_what_was_told_to_a_client_is_given_to_no_other_record(
    end: int, seen: int, log_start: int, epoch: int, audited: list[int], groups: list[int]
) -> None:
    """
    New offsets begin above every slice and every believed offset of a group, in a later epoch.
    """
    manifest = replace(EMPTY, end=end, leader_epochs=(LeaderEpoch(3, 0),))
    facts = PartitionFacts(end=seen, leader_epoch=epoch, log_start=log_start)

    plan = plan_partition(manifest, facts, (), groups, max(audited, default=-1))

    believed = [offset for offset in groups if offset not in plan.not_believed]
    assert plan.goes_on_at == max(end, seen, *believed, 0)
    assert end == plan.joined_end
    assert plan.log_start <= plan.goes_on_at
    assert plan.log_start == min(log_start, plan.goes_on_at)
    wanted = max(epoch, 3, *audited) + 2**20
    assert plan.leader_epoch == min(wanted, INT32_MAX - 2**20)
    assert all(offset > max(end, seen) + 2**40 for offset in plan.not_believed)
    assert (plan.empty is None) == (plan.goes_on_at == end)


def test_a_group_that_commits_the_largest_offset_leaves_offsets_to_the_partition() -> None:
    """
    It is not believed, and reported.
    """
    plan = plan_partition(EMPTY, PartitionFacts(end=7), (), {5, 9, 2**63 - 1})

    assert (9, (2**63 - 1,)) == (plan.goes_on_at, plan.not_believed)
    assert (0, 9) == plan.empty
