"""librdkafka's admin client, and the wait for its answers.

Apache Kafka answers a change before all of its brokers show it.  `until_shown` waits until one
shows it, so that the next call of a program finds the change.
Shell.
"""

import contextlib
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from driftlog.common.connection import Connections, configuration, fail, unreachable
from driftlog.errors import ClosedError, DriftlogError, OutcomeUnknownError

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)

_CONNECT_S: Final = 10.0
_PASSES: Final = frozenset({5, 6, 14, 15, 16, 41, 74, 75})
"""There is no leader, coordinator or controller at the moment: nothing was done."""
_SHOWN_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.05
_GRACE_S: Final = 5.0
"""librdkafka ends requests at their timeout; the client does so where librdkafka does not."""


class AdminLink:
    """One admin client, which describes the cluster before its first request."""

    def __init__(self, servers: str, timeout_s: float, config: Mapping[str, Any] | None) -> None:
        self.timeout_s = timeout_s
        self._connections = Connections(servers, config)
        self._connected = False
        configs = configuration(servers, {}, config, self._connections.failed)
        try:
            self._handle: Any = AdminClient(configs)
        except KafkaException as error:
            raise ValueError(f"librdkafka refuses the configuration: {error.args[0]}") from error

    def ask(self, what: str, request: Callable[[Any], Mapping[Any, Future[T]]]) -> T:
        """The answer of a request for one thing.

        Args:
            what: the request in an error message, such as "create topic 'a'".

        Raises:
            UnreachableError: no broker answered the first request.
            OutcomeUnknownError: no broker answered this one.
            RequestError: the cluster declined.
        """
        return self.ask_one(what, lambda handle: next(iter(request(handle).values())))

    def ask_one(self, what: str, request: Callable[[Any], Future[T]]) -> T:
        """As `ask`, for a request with one future."""
        answers = self.each(["it"], lambda handle, _: {"it": request(handle)}, lambda _: what)
        return answers["it"]

    def each(
        self,
        keys: Iterable[Key],
        request: Callable[[Any, list[Key]], Mapping[Key, Future[T]]],
        what: Callable[[Key], str],
    ) -> dict[Key, T]:
        """As `ask`, for many things; all are awaited, then the first failure is raised.

        A request with an error that passes (a coordinator loads) is sent again, alone.
        """
        deadline = time.monotonic() + self.timeout_s
        answers: dict[Key, T] = {}
        failures: list[Exception] = []
        waiting = list(keys)
        while waiting:
            again: list[Key] = []
            for key, future in self._send(request, waiting, what(waiting[0])).items():
                try:
                    answers[key] = self.wait(what(key), future)
                except DriftlogError as error:
                    if error.code in _PASSES and time.monotonic() < deadline:
                        again.append(key)
                    else:
                        failures.append(error)
            waiting = again
            if waiting:
                time.sleep(_LOOK_AGAIN_S)
        for other in failures[1:]:
            failures[0].add_note(str(other))
        if failures:
            raise failures[0]
        return answers

    def wait(self, what: str, future: Future[T]) -> T:
        """The result of *future*; raises as `ask`."""
        try:
            return future.result(self.timeout_s + _GRACE_S)
        except KafkaException as error:
            fail(what, error)
        except TimeoutError as error:
            raise OutcomeUnknownError(
                f"could not {what}: no answer. The cluster may have done it: check before "
                "you repeat it.",
                retriable=True,
            ) from error

    def metadata(self) -> Any:
        """All topics and brokers."""
        handle = self._open()
        try:
            return handle.list_topics(timeout=self.timeout_s)
        except KafkaException as error:
            fail("list topics", error)

    def describe_cluster(self) -> Any:
        """The brokers of the cluster.

        Raises:
            UnreachableError: no broker answered.
        """
        if self._handle is None:
            raise ClosedError("this Admin is closed: create a new one")
        timeout_s = min(_CONNECT_S, self.timeout_s)
        self._connections.check(timeout_s)
        try:
            found = self._handle.describe_cluster(request_timeout=timeout_s).result(
                timeout_s + _GRACE_S
            )
        except (KafkaException, TimeoutError) as error:
            servers, last = self._connections.servers, self._connections.last_error
            raise unreachable(servers, timeout_s, last) from error
        self._connected = True
        return found

    def until_shown(self, shown: Callable[[], bool]) -> None:
        """Wait until *shown*; the change is done, so a time-out is no error."""
        deadline = time.monotonic() + min(_SHOWN_S, self.timeout_s)
        while time.monotonic() < deadline:
            with contextlib.suppress(DriftlogError):
                if shown():
                    return
            time.sleep(_LOOK_AGAIN_S)

    def close(self) -> None:
        """Close the connections."""
        self._handle = None

    def _send(
        self,
        request: Callable[[Any, list[Key]], Mapping[Key, Future[T]]],
        keys: list[Key],
        what: str,
    ) -> Mapping[Key, Future[T]]:
        handle = self._open()
        try:
            return request(handle, keys)
        except KafkaException as error:
            fail(what, error)

    def _open(self) -> Any:
        if not self._connected or self._handle is None:
            self.describe_cluster()
        return self._handle
