"""The client's errors; the class says what its caller may do next.

    DriftlogError
    ├── UnreachableError      no broker answered; nothing was done
    ├── RequestError          the cluster understood, and declined; nothing was done
    │   ├── TopicExistsError, UnknownTopicError, UnknownGroupError, GroupNotEmptyError,
    │   └── InvalidConfigError, AuthorizationError, UnsupportedError
    ├── OutcomeUnknownError   the answer was lost: the request may have been carried out
    ├── DeliveryError         records that were not acknowledged, each with its reason
    ├── QueueFullError        this record was not taken: too many wait for acknowledgement
    ├── FlushTimeoutError     records still wait for acknowledgement
    ├── CommitError           offsets were not committed: the group reads their records again
    ├── NotAssignedError      this consumer does not read that partition
    ├── SerializationError    this record was not taken: its serializer failed
    ├── DeserializationError  this record cannot be read with the given deserializer
    └── ClosedError           used after it was closed

Every message ends with what to do.  `code` is Kafka's error code, or librdkafka's (negative).
Pure.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

_SHOWN: Final = 5


class KafkaErrorLike(Protocol):
    """The methods of `confluent_kafka.KafkaError` that are used."""

    def code(self) -> int: ...
    def name(self) -> str: ...
    def str(self) -> str: ...
    def retriable(self) -> bool: ...


class DriftlogError(Exception):
    """Base of every error that the client raises."""

    code: int | None = None
    """Kafka's error code, librdkafka's if it is negative, or None."""
    retriable: bool = False
    """The same call may succeed later, without a change."""

    def __init__(
        self, message: str, *, code: int | None = None, retriable: bool | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        if retriable is not None:
            self.retriable = retriable


class UnreachableError(DriftlogError):
    """No broker answered.  Nothing was done."""

    retriable = True


class RequestError(DriftlogError):
    """The cluster understood the request and declined it.  Nothing was done."""


class TopicExistsError(RequestError):
    """There is a topic of that name."""


class UnknownTopicError(RequestError):
    """There is no topic of that name, or it has no such partition."""


class UnknownGroupError(RequestError):
    """There is no group of that name."""


class GroupNotEmptyError(RequestError):
    """The group has active members, and the request is possible only without members."""


class InvalidConfigError(RequestError):
    """A config that does not exist, or a value that it does not take."""


class AuthorizationError(RequestError):
    """The credentials do not allow the request."""


class UnsupportedError(RequestError):
    """The cluster does not support the request, or not in the client's version."""


class OutcomeUnknownError(DriftlogError):
    """The answer was lost.  The request may have been carried out: check before you repeat it."""


class QueueFullError(DriftlogError):
    """The record was not taken: too many wait for acknowledgement."""

    retriable = True


class FlushTimeoutError(DriftlogError):
    """Records still wait for acknowledgement; they are neither delivered nor lost.

    Attributes:
        waiting: the number of these records.
    """

    retriable = True

    def __init__(self, waiting: int, message: str) -> None:
        super().__init__(message)
        self.waiting = waiting


class CommitError(DriftlogError):
    """Offsets were not committed: the group reads the records after its last commit again."""


class NotAssignedError(DriftlogError):
    """This consumer does not read that partition, or not any more.

    Attributes:
        topic, partition: the partition.
    """

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(
            f"{topic}-{partition} is not assigned to this consumer: see assignment(). The first "
            "read assigns the partitions of a group; a rebalance may revoke them."
        )
        self.topic, self.partition = topic, partition


class SerializationError(DriftlogError):
    """A serializer failed; the record was not taken.  The cause is chained."""


class DeserializationError(DriftlogError):
    """A deserializer failed, or the key of a header is not UTF-8.  The cause is chained.

    The record counts as handed out: the next read marks it as processed and continues after it.  A
    ``with`` block that ends with this error does not commit the record: the group reads it again.

    Attributes:
        topic, partition, offset: the record; `Consumer.seek` to *offset* + 1 skips it.
        key, value: its bytes.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        super().__init__(message)
        self.topic, self.partition, self.offset = topic, partition, offset
        self.key, self.value = key, value


class ClosedError(DriftlogError):
    """The producer, consumer or Admin was closed before this call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedDelivery:
    """A record that was not acknowledged."""

    topic: str
    partition: int | None
    """None: it failed before a partition was chosen."""
    key: bytes | None
    value: bytes | None = field(repr=False)
    code: int
    """Kafka's error code; librdkafka's if it is negative."""
    reason: str
    advice: str
    """The advice, as a sentence."""
    outcome_unknown: bool
    """True: only the answer was lost, so the record may be in the log.  Produced again, it may be
    there twice.  False: it was not written."""

    def __str__(self) -> str:
        where = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        key = "no key" if self.key is None else f"key {_short(self.key)}"
        written = "may have been written" if self.outcome_unknown else "not written"
        return f"{where}, {key}: {written}: {self.reason}. {self.advice}"


class DeliveryError(DriftlogError):
    """Records that were not acknowledged.

    Attributes:
        failures: the first thousand of them, each with topic, partition, key, reason and advice.
        count: the number of all failures.
    """

    def __init__(self, failures: Sequence[FailedDelivery], count: int, addition: str = "") -> None:
        assert failures
        assert count >= len(failures)
        self.failures = tuple(failures)
        self.count = count
        records = "1 record was" if count == 1 else f"{count:,} records were"
        lines = [f"{records} not acknowledged{addition}"]
        lines += [f"  {failure}" for failure in failures[:_SHOWN]]
        if count > _SHOWN:
            by_reason = Counter(failure.reason for failure in failures)
            reasons = "; ".join(f"{reason}: {n:,}" for reason, n in by_reason.most_common(_SHOWN))
            lines.append(f"  … (of the first {len(failures):,}: {reasons})")
        super().__init__("\n".join(lines), code=failures[0].code)


_ADVICE: Final[dict[int, str]] = {
    -195: (
        "Check that an agent runs, and that this is its address. The client connects again "
        "by itself."
    ),
    -193: "The host name is not known: check bootstrap_servers, and what the agents advertise.",
    -192: "No broker acknowledged it within delivery_timeout_ms: check that the agents and their "
    "bucket answer (the agents' log names what they wait for), or raise delivery_timeout_ms.",
    -190: "There is no such partition: leave partition out, or add partitions to the topic.",
    -188: "Create the topic first: Admin().topics.create(…), or `driftlog topics create`.",
    -187: "Check that an agent runs, and that bootstrap_servers is its address.",
    -186: "Check the arguments.",
    -185: "Try again; if the error persists, read the agents' log.",
    -184: "Produce more slowly, or raise queue_max_bytes.",
    -181: "Check the certificates (ssl.ca.location) and that the listener speaks TLS.",
    -180: "The group's coordinator did not answer: try again.",
    -169: "Check sasl.mechanism, sasl.username and sasl.password.",
    -166: "It waited in the client's queue for longer than delivery_timeout_ms: check that the "
    "agents and their bucket answer, or raise delivery_timeout_ms.",
    -156: "A partition may have no leader while an agent starts or etcd does not answer: try "
    "again; the agents' /readyz names what they wait for.",
    -152: "The producer was closed before it sent the record: produce it again.",
    -151: "The producer was closed before the answer came: check whether the record is there.",
    -150: (
        "This producer cannot continue: create a new one, and produce the failed records again."
    ),
    -147: "Processing took longer than max_poll_interval_ms: raise it, or do less per record.",
    -142: "Another member owns the partitions now, and reads what was not committed again.",
    1: "Retention has deleted the offset, or it is not written yet: seek to another one.",
    3: "Create the topic first: Admin().topics.create(…), or `driftlog topics create`.",
    5: "The partition has no leader right now: try again in some seconds.",
    6: "Another agent leads the partition now: try again.",
    7: "The agents did not answer in time: read their log, and try again.",
    10: "The batch is larger than the topic allows: raise the topic's max.message.bytes, or lower "
    "max_message_bytes and batch_bytes.",
    12: "Commit shorter metadata.",
    14: "The group's coordinator is loading: try again.",
    15: "The group has no coordinator right now: try again.",
    16: "Another agent coordinates the group now: try again.",
    17: "Choose another name: at most 249 letters, digits, '.', '_' and '-'.",
    22: "This member has left the group: processing took longer than max_poll_interval_ms, or its "
    "connection was lost. The next owner reads its records again.",
    23: "The other members use another protocol or assignor: give all of them the same "
    "partition.assignment.strategy and group.protocol.",
    24: "Give the group a name of at most 1,024 bytes of UTF-8.",
    25: "This member has left the group: processing took longer than max_poll_interval_ms, or its "
    "connection was lost. The next owner reads its records again.",
    26: "Choose session_timeout_ms between the broker's group.min.session.timeout.ms and "
    "group.max.session.timeout.ms.",
    27: "The group is rebalancing: try again in a moment.",
    29: "Ask for the right to use this topic.",
    30: "Ask for the right to use this group.",
    31: "Ask for the right to administer this cluster.",
    32: "The topic does not take a timestamp so far from now: check its unit (milliseconds), or "
    "the topic's message.timestamp.* configs.",
    33: "Choose a sasl.mechanism that the listener offers.",
    35: "Use a newer cluster, or leave this out.",
    36: "Choose another name, or use the existing topic.",
    37: "Choose at least 1 partition, and more than the topic has: none can be taken away.",
    38: "Choose a replication factor that the cluster has brokers for, or leave it out.",
    40: "Look up the config's name and values: Admin().configs.describe_topic(…).",
    41: "Try again.",
    42: "Check the arguments.",
    44: "The cluster's policy forbids this: ask its administrators.",
    45: "An earlier record of this partition failed: create a new producer, and produce the "
    "failed records again.",
    47: (
        "Another producer has replaced this one: create a new one, and produce the failed "
        "records again."
    ),
    56: "The agent's disk or bucket fails: read its log.",
    68: "Stop the group's members first, and wait until their sessions have ended.",
    69: "Check the name: Admin().groups.list() shows the groups.",
    76: "Choose another compression.",
    81: "The group has as many members as the agents' group.max.size allows: stop one, or raise "
    "it.",
    82: "Another member runs with the same group.instance.id: give each its own.",
    86: "Stop the members that read the topic first.",
    87: "The topic does not take such a record: a compacted topic needs a key.",
    89: "Send fewer requests.",
    100: "The topic was deleted, and perhaps created again: look it up, and try again.",
    110: "The group has fenced this member: the next owner reads its records again.",
    113: "The member's epoch is old: the next owner reads its records again.",
}
"""Advice for error codes."""

_OUTCOME_UNKNOWN: Final = frozenset({-195, -192, -185, -151, 7, 13, 20})
"""The answer was lost, or may have been: the request may have been carried out."""

_KINDS: Final[dict[int, type[RequestError]]] = {
    -188: UnknownTopicError,
    -190: UnknownTopicError,
    3: UnknownTopicError,
    100: UnknownTopicError,
    36: TopicExistsError,
    29: AuthorizationError,
    30: AuthorizationError,
    31: AuthorizationError,
    53: AuthorizationError,
    58: AuthorizationError,
    -169: AuthorizationError,
    35: UnsupportedError,
    -165: UnsupportedError,
    40: InvalidConfigError,
    68: GroupNotEmptyError,
    86: GroupNotEmptyError,
    69: UnknownGroupError,
}
_UNREACHABLE: Final = frozenset({-193, -187})


def advice(code: int) -> str:
    """The advice for an error code, as a sentence."""
    return _ADVICE.get(code, "Read the agents' log.")


def outcome_unknown(code: int) -> bool:
    """Whether the request may have been carried out despite the error."""
    return code in _OUTCOME_UNKNOWN


def reason(error: KafkaErrorLike) -> str:
    """The error's message, without a full stop."""
    text = error.str() or error.name()
    return text.removeprefix("Unable to produce message: ").rstrip(". ")


def request_error(what: str, error: KafkaErrorLike) -> DriftlogError:
    """The exception for a request that failed; *what*: "create topic 'a'"."""
    code = error.code()
    message = f"could not {what}: {reason(error)}. {advice(code)}"
    if code in _UNREACHABLE:
        return UnreachableError(message, code=code)
    if outcome_unknown(code):
        return OutcomeUnknownError(message, code=code, retriable=True)
    return _KINDS.get(code, RequestError)(message, code=code, retriable=error.retriable())


def _short(key: bytes) -> str:
    return repr(key) if len(key) <= 60 else f"{key[:60]!r}… ({len(key)} bytes)"
