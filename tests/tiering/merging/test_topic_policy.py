"""If it failed: jobs would merge by other limits than agents, and retention would wait."""

import pytest

from driftlog_agents.configs.topic import topic_compaction, topic_retention, topic_sealing
from driftlog_agents.log.merging.topic_policies import TopicPolicies
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_tiering.merging.topic_policy import merge_policy


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"retention.ms": "-1"},
        {"retention.ms": "60000000", "segment.ms": "60000", "segment.bytes": "1048576"},
        {"cleanup.policy": "compact", "min.compaction.lag.ms": "5"},
        {"cleanup.policy": "compact,delete", "retention.ms": "1000"},
    ],
)
def test_a_jobs_limits_are_an_agents_limits(configs: dict[str, str]) -> None:
    compaction = topic_compaction(configs, {})
    agents = TopicPolicies(
        SealSettings(),
        {"t": topic_sealing(configs, {})},
        {"t": topic_retention(configs, {})},
        {} if compaction is None else {"t": compaction},
    )

    assert agents.of("t", 5) == merge_policy(configs, 5)
