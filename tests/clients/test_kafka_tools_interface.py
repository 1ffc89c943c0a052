"""What web interfaces for Kafka ask, page by page, of Apache Kafka and of driftlog: see
`UserInterface.java` and test_kafka_tools.py.

Shell.
"""

from typing import Final

import pytest

from tests.clients.tool_comparison import Difference, Pair, step
from tests.support.kafka_peer import kafka_jars

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("kafka_tools"),
]

TRANSACTIONS: Final = Difference(
    "transactions",
    "there are none yet, and interfaces ask by API version",
    r"^transactions  \[\]$",
    r"^transactions  UnsupportedVersionException  The node does not support LIST_TRANSACTIONS$",
)


def test_every_page_of_a_user_interface(pair: Pair) -> None:
    """
    Cluster, brokers, topics, records, groups and lag are shown alike, and each button does what
    it does, or is refused with the same words.
    """
    pair.compare([step("user-interface", TRANSACTIONS, reads=False)])
