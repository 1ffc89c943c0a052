"""Random ids of clusters and topics, as Kafka makes them (``Uuid.randomUuid``).

    16 random bytes ──▶ base64url begins with a dash? ──no──▶ the id
        ▲                           └─yes─┐
        └─────────────────────────────────┘

A command line takes an id that begins with a dash for an option.

Pure.
"""

from base64 import urlsafe_b64encode
from random import Random
from uuid import UUID


def random_uuid(rng: Random) -> UUID:
    """A random UUID; never zero."""
    while True:
        found = UUID(int=rng.getrandbits(128), version=4)
        if not kafka_text(found).startswith("-"):
            return found


def kafka_text(uuid: UUID) -> str:
    """Kafka's form of *uuid*: base64url of its 16 bytes, without padding (``Uuid#toString``)."""
    return urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()
