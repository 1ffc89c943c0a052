"""If this fails, the names of a member's topics take more memory or time than is counted."""

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.groups.classic.subscription import named_topics, subscribed_topics
from driftlog_agents.protocol.consumer_protocol import (
    ConsumerProtocolSubscription,
    encode_subscription,
)


@given(st.lists(st.text(max_size=5)))
def test_the_number_of_names_is_known_without_them(names: list[str]) -> None:
    """
    Names that are there twice count twice: both are read.
    """
    said = ConsumerProtocolSubscription(topics=names, owned_partitions=[])
    assert len(names) == named_topics(encode_subscription(1, said))


@given(st.binary(max_size=40))
def test_no_metadata_has_more_names_than_are_counted(metadata: bytes) -> None:
    """
    And a number that does not fit into the metadata is not believed.
    """
    count = named_topics(metadata)
    assert len(subscribed_topics(metadata) or ()) <= count <= len(metadata) // 2
