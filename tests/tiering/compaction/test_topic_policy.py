"""If it failed: jobs would compact topics by other rules than agents."""

import pytest

from driftlog_agents.configs.topic import topic_compaction
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.compaction.topic_policy import cleanup_policies, compaction_policy

SET = {
    "min.compaction.lag.ms": "7",
    "max.compaction.lag.ms": "8",
    "min.cleanable.dirty.ratio": "0.25",
    "delete.retention.ms": "9",
    "segment.bytes": "1048576",
}


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
def test_a_jobs_policy_is_an_agents_policy_and_defaults_are_kafkas(policy: str) -> None:
    """
    Of a topic that sets nothing else, and of one that sets all.
    """
    for configs in ({"cleanup.policy": policy}, {"cleanup.policy": policy, **SET}):
        assert compaction_policy(configs) == topic_compaction(configs, {})
    assert CompactionPolicy() == compaction_policy({"cleanup.policy": policy})
    assert 9 == (compaction_policy({"cleanup.policy": policy, **SET}) or POLICY).delete_retention_ms


POLICY = CompactionPolicy()


@pytest.mark.parametrize("configs", [{}, {"cleanup.policy": "delete"}, {"segment.bytes": "1"}])
def test_other_topics_are_not_compacted(configs: dict[str, str]) -> None:
    assert compaction_policy(configs) is None
    assert topic_compaction(configs, {}) is None
    assert ["delete"] == cleanup_policies(configs)


def test_a_config_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        compaction_policy({"cleanup.policy": "compact", "delete.retention.ms": "a day"})
