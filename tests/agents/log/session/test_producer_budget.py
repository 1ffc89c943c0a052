"""If it failed: an agent would take producers without a bound, or tell an operator every second."""

from driftlog_agents.log.session.producer_budget import BudgetNews, ProducerBudget, ProducerSettings


def test_the_budget_is_full_from_its_bound_on_and_each_change_is_told_once() -> None:
    """
    A refusal names the bound, which a user can set.
    """
    budget = ProducerBudget(ProducerSettings(state_bytes=100))
    told = [budget.counted(used, 1) for used in (99, 100, 150, 99, 0)]

    assert ["NONE", "FULL", "NONE", "HAS_ROOM", "NONE"] == [news.name for news in told]
    assert not budget.full
    assert BudgetNews.FULL is budget.counted(100, 2)
    assert (100, 2, True) == (budget.used_bytes, budget.producers, budget.full)
    assert "100 bytes" in budget.refusal
