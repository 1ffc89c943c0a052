"""If this fails, an agent that takes over a topic of very many partitions stalls its event loop."""

from collections.abc import Sequence
from typing import Any

import pytest

from driftlog_agents.log.leadership import claim_transactions
from driftlog_agents.log.leadership.claims import ClaimPlan, plan_claims
from driftlog_metadata.schema.model import TopicPartition
from tests.agents.log.lives import World, on_virtual_time


@on_virtual_time
async def test_claims_of_very_many_partitions_are_planned_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A hundred at once: 10,000 took 60 ms in one step.
    """
    planned: list[int] = []

    def plan(wanted: Sequence[TopicPartition], *args: Any) -> ClaimPlan:
        planned.append(len(wanted))
        return plan_claims(wanted, *args)

    monkeypatch.setattr(claim_transactions, "plan_claims", plan)
    life = await World(t=1_001).start()

    assert 1_001 == sum(planned) == sum(1 for log in life.engine.logs() if log.topic == "t")
    assert max(planned) <= 100
