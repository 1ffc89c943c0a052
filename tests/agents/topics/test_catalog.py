"""Topics take what they inherit of the agent's settings, however many they are."""

from collections.abc import Iterator, Mapping
from uuid import UUID

from structlog.testing import capture_logs

from driftlog_agents.topics.catalog import TopicCatalog
from driftlog_metadata.schema.model import Topic

TOPICS = 20


class CountedConfigs(Mapping[str, str]):
    """A topic's configs, and how often they were read."""

    def __init__(self, **configs: str) -> None:
        self._configs = configs
        self.reads = 0

    def __getitem__(self, name: str) -> str:
        self.reads += 1
        return self._configs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)


def catalog_of(*topics: Mapping[str, str]) -> TopicCatalog:
    """With a topic t0, t1, … for each of these configs."""
    catalog = TopicCatalog({"log.retention.ms": "10"}, 1.0)
    for i, configs in enumerate(topics):
        catalog.know(Topic(name=f"t{i}", topic_id=UUID(int=i + 1), partitions=1, configs=configs))
    return catalog


def test_new_settings_are_inherited_in_one_step() -> None:
    """
    Upkeep begins when the view has a change: with some topics behind it, records would expire by
    the retention before the change.
    """
    catalog = catalog_of(*({"segment.ms": str(10_000 + i)} for i in range(TOPICS)))
    catalog.inherit({"log.retention.ms": "20"})

    assert {20} == {policy.ms for policy in catalog.retention.values()}


def test_new_settings_cost_nothing_until_a_topic_is_used() -> None:
    """
    Else a change of one broker config stalls all clients: 634 ms for 10,000 topics.
    """
    topics = [CountedConfigs() for _ in range(TOPICS)]
    catalog = catalog_of(*topics)

    def reads() -> list[int]:
        return [topic.reads for topic in topics]

    before = reads()
    catalog.inherit({"log.retention.ms": "20"})
    at_once = reads()
    assert 20 == catalog.retention["t3"].ms
    after = reads()
    for policies in (catalog.limits, catalog.sealing, catalog.retention, catalog.compaction):
        policies.get("t3")

    assert before == at_once
    assert [3] == [i for i in range(TOPICS) if after[i] != before[i]]
    assert after == reads(), "computed again"


def test_only_compacted_topics_have_a_policy_of_compaction() -> None:
    """
    Else records of other topics are compacted, or a topic that inherits compaction is not.
    """
    catalog = catalog_of({}, {"cleanup.policy": "compact"}, {"cleanup.policy": "delete"})
    before = set(catalog.compaction), len(catalog.compaction)
    catalog.inherit({"log.cleanup.policy": "compact"})
    after = {name for name in ("t0", "t1", "t2", "gone") if name in catalog.compaction}

    assert (({"t1"}, 1), {"t0", "t1"}) == (before, after)


def test_a_deleted_topic_has_no_policies() -> None:
    """
    Else batches and upkeep follow the configs of a topic that is gone.
    """
    catalog = catalog_of({}, {})
    catalog.forget(catalog.by_name["t0"])

    assert (None, ["t1"]) == (catalog.limits.get("t0"), list(catalog.retention))


def test_unreadable_configs_are_logged_when_they_arrive() -> None:
    """
    Else the operator learns that a topic is served with the defaults when it is used, or never.
    """
    with capture_logs() as log:
        catalog = catalog_of({"retention.ms": "for ever"})
    assert ["topic_configs_unreadable"] == [entry["event"] for entry in log]
    assert catalog.retention["t0"].keeps_all
