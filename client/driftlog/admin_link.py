"""librdkafka's admin client, and how its answers are waited for.

Apache Kafka answers a change before all of its brokers show it.  `until_shown` waits for one that
does, so that what follows in a program finds it done.
Shell.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from driftlog.connection import Connections, configuration, fail, unreachable
from driftlog.errors import ClosedError, DriftlogError, OutcomeUnknownError

T = TypeVar("T")

_CONNECT_S: Final = 10.0
_SHOWN_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.05
_GRACE_S: Final = 5.0
"""librdkafka ends requests at their timeout; we do where it does not."""


class AdminLink:
    """One admin client, which asks who is there before its first request."""

    def __init__(self, servers: str, timeout_s: float, config: Mapping[str, Any] | None) -> None:
        self.timeout_s = timeout_s
        self._connections = Connections(servers)
        self._connected = False
        configs = configuration(servers, {}, config, self._connections.failed)
        try:
            self._handle: Any = AdminClient(configs)
        except KafkaException as error:
            raise ValueError(f"librdkafka refuses the configuration: {error.args[0]}") from error

    def ask(self, what: str, request: Callable[[Any], Mapping[Any, Future[T]]]) -> dict[Any, T]:
        """The answers of a request that has several, by what they are for.

        Args:
            what: in the words of an error, such as "describe topics".

        Raises:
            UnreachableError: nobody answered the first request.
            OutcomeUnknownError: nobody answered this one.
            RequestError: the cluster declined.
        """
        futures = self._send(what, request)
        return {key: self.wait(what, future) for key, future in futures.items()}

    def ask_one(self, what: str, request: Callable[[Any], Future[T]]) -> T:
        """As `ask`, of a request that has one answer."""
        return self.wait(what, self._send(what, request))

    def each(
        self, request: Callable[[Any], Mapping[Any, Future[T]]], what: Callable[[Any], str]
    ) -> dict[Any, T]:
        """As `ask`, with words for each key; all are awaited, then the first failure is raised."""
        answers: dict[Any, T] = {}
        failed: Exception | None = None
        for key, future in self._send("ask the cluster", request).items():
            try:
                answers[key] = self.wait(what(key), future)
            except Exception as error:  # noqa: BLE001  # raised below, with the others on it
                if failed is None:
                    failed = error
                else:
                    failed.add_note(str(error))
        if failed is not None:
            raise failed
        return answers

    def wait(self, what: str, future: Future[T]) -> T:
        """The answer."""
        try:
            return future.result(self.timeout_s + _GRACE_S)
        except KafkaException as error:
            fail(what, error)
        except TimeoutError as error:
            raise OutcomeUnknownError(
                f"could not {what}: no answer. It may have been done: look before you repeat it.",
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
        """Who is there.

        Raises:
            UnreachableError: nobody answered.
        """
        if self._handle is None:
            raise ClosedError("this Admin is closed: make a new one")
        timeout_s = min(_CONNECT_S, self.timeout_s)
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
        """Wait for what was done; that it is not shown in time is not worth an error."""
        deadline = time.monotonic() + min(_SHOWN_S, self.timeout_s)
        while time.monotonic() < deadline:
            with contextlib.suppress(DriftlogError):
                if shown():
                    return
            time.sleep(_LOOK_AGAIN_S)

    def close(self) -> None:
        """Let the handle go."""
        self._handle = None

    def _send(self, what: str, request: Callable[[Any], T]) -> T:
        handle = self._open()
        try:
            return request(handle)
        except KafkaException as error:
            fail(what, error)

    def _open(self) -> Any:
        if not self._connected or self._handle is None:
            self.describe_cluster()
        return self._handle
