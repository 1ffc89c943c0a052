"""Records that a consumer read, and places of records that a producer wrote.

Null and empty stay different everywhere.

Pure.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # A bare `Record` is one of bytes.
    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Headers = tuple[tuple[str, bytes | None], ...]
"""In their order, with repetitions.  A value may be null."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Record(NamedTuple, Generic[K, V]):
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Since 1970, UTC: the producer's time, or the log's (`message.timestamp.type`); -1: none."""
    key: K | None
    value: V | None
    headers: Headers = ()
    leader_epoch: int | None = None

    @property
    def timestamp(self) -> datetime | None:
        """`timestamp_ms` as a time in UTC; None: there is none.

        Raises:
            OverflowError: it lies beyond the year 9999; perhaps its unit is not milliseconds.
        """
        return None if self.timestamp_ms < 0 else from_ms(self.timestamp_ms)

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the record."""
        return TopicPartition(self.topic, self.partition)

    def header(self, name: str) -> bytes | None:
        """The last header of that name; None: there is none, or it is null."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


class Delivered(NamedTuple):
    """An acknowledgement: the record's place."""

    topic: str
    partition: int
    offset: int
    """-1 with ``acks=0``: the broker does not answer."""
    timestamp_ms: int
    """Since 1970, UTC; -1: none."""

    @property
    def timestamp(self) -> datetime | None:
        """`timestamp_ms` as a time in UTC; None: there is none."""
        return None if self.timestamp_ms < 0 else from_ms(self.timestamp_ms)


def from_ms(timestamp_ms: int) -> datetime:
    """The time in UTC, exactly."""
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


def to_ms(timestamp: datetime) -> int:
    """Milliseconds since 1970, rounded down.

    Raises:
        ValueError: *timestamp* has no time zone.
    """
    if timestamp.tzinfo is None:
        raise ValueError(f"{timestamp!r} has no time zone: give datetime(…, tzinfo=UTC)")
    return (timestamp - _EPOCH) // timedelta(milliseconds=1)


class Message(Protocol):
    """The methods of `confluent_kafka.Message` that are used."""

    def topic(self) -> Any: ...
    def partition(self) -> Any: ...
    def offset(self) -> Any: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> Any: ...
    def leader_epoch(self) -> Any: ...
