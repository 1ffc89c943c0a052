"""Records that a consumer read, and places of records that a producer wrote.

Null and empty stay different everywhere.

Pure.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import methodcaller
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


class _NoHeaders(tuple[tuple[str, bytes | None], ...]):
    """Equal to no headers, and another object."""

    __slots__ = ()


UNREADABLE: Final[Headers] = _NoHeaders()
"""In the place of headers that cannot be read: see `headers_of`."""


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


_HEADERS: Final[Callable[[Message], Any]] = methodcaller("headers")
"""Of a key that is not UTF-8, confluent-kafka 2.16.1 returns a list with a hole, and leaves the
error set.  A call from C sees that and raises SystemError; the interpreter, once it has specialized
the call, takes the list, and ends with a segmentation fault or an error of a later call."""


def headers_of(message: Message) -> Headers:
    """The headers of a message; after an error, confluent-kafka returns the list with the hole.

    Raises:
        UnicodeError: the key of a header is not UTF-8, which Kafka does not require.
    """
    try:
        headers = _HEADERS(message)
    except (SystemError, UnicodeDecodeError) as error:
        raise UnicodeError(
            "the key of a header is not UTF-8, and confluent-kafka cannot read it"
        ) from error
    return () if headers is None else tuple(headers)
