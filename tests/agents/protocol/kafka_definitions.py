"""Kafka's own message definitions, read from the kafka-clients jar of Apache Kafka 4.3.1.

Found among the jars that `tests/support/kafka_peer.py` fetches or in Maven's local
repository; the tests that need it skip where it is in neither.
Adapter.
"""

import functools
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

JAR = "kafka-clients-4.3.1.jar"
PLACES = (
    Path(__file__).parents[3] / ".cache" / "kafka-jars" / JAR,
    Path.home() / ".m2/repository/org/apache/kafka/kafka-clients/4.3.1" / JAR,
)


def jar() -> Path:
    """The jar; skips the test where there is none."""
    for place in PLACES:
        if place.exists():
            return place
    pytest.skip(
        f"no {JAR} in .cache/kafka-jars nor in Maven's repository: "
        "mvn dependency:get -Dartifact=org.apache.kafka:kafka-clients:4.3.1"
    )


@functools.cache
def definition(name: str) -> dict[str, Any]:
    """Kafka's definition of a message, by its name: ``ProduceRequest``."""
    with zipfile.ZipFile(jar()) as archive:
        text = archive.read(f"common/message/{name}.json").decode()
    parsed: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return parsed
