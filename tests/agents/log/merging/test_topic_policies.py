"""The limits of merges in a topic: wrong, merged records outlive their retention."""

from driftlog_agents.log.merging.topic_policies import TopicPolicies
from driftlog_agents.log.retention.policy import TopicRetention
from driftlog_agents.log.sealing.policy import SealSettings, TopicSealPolicy
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.merging.policy import MergePolicy

SEAL = SealSettings(segment_bytes=1_000, segment_ms=600)


def test_the_topics_own_configs_go_before_the_agents() -> None:
    policies = TopicPolicies(
        SEAL,
        sealing={"own": TopicSealPolicy(segment_bytes=50, segment_ms=7_000)},
        retention={"own": TopicRetention(ms=20_000), "other": TopicRetention(ms=20_000)},
        compaction={"own": CompactionPolicy(min_lag_ms=3)},
    )
    assert policies.of("own", 4) == MergePolicy(
        segment_bytes=50, span_ms=7_000, min_lag_ms=3, factor=4
    )
    assert policies.of("other", 4) == MergePolicy(segment_bytes=1_000, span_ms=2_000, factor=4)


def test_a_topic_without_retention_has_no_limit_of_time_and_an_unknown_one_no_policy() -> None:
    policies = TopicPolicies(SEAL, retention={"t": TopicRetention()})
    assert policies.of("t", 2) == MergePolicy(segment_bytes=1_000, span_ms=None, factor=2)
    assert policies.of("deleted", 2) is None
