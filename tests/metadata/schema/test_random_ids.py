"""If it failed: one cluster in 64 could not be named on a command line."""

from random import Random
from uuid import UUID

from driftlog_metadata.schema.random_ids import kafka_text, random_uuid


class Drawn(Random):
    """Draws these numbers."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self._numbers = list(numbers)

    def getrandbits(self, k: int, /) -> int:
        return self._numbers.pop(0)


def test_an_id_does_not_begin_with_a_dash() -> None:
    """
    Base64url has the dash for 62: of 16 bytes the first six bits.
    """
    dash, other = 62 << 122, 61 << 122

    found = random_uuid(Drawn(dash, other))

    assert "-" == kafka_text(UUID(int=dash, version=4))[0]
    assert "9AAAAAAAQACAAAAAAAAAAA" == kafka_text(found)
