"""Shared by all clients: the cluster's address, librdkafka's configs, its log and its errors.

    argument or option  >  DRIFTLOG_BOOTSTRAP_SERVERS  >  DRIFTLOG_BOOTSTRAP  >  127.0.0.1:9092

The `driftlog` command uses the same address.

librdkafka's log lines go to the logger ``driftlog.librdkafka``, the client's own to ``driftlog``.
Shell.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException

from driftlog.common.bootstrap_probe import check_bootstrap
from driftlog.common.settings import RESERVED, Config
from driftlog.errors import DriftlogError, UnreachableError, request_error

LOG: Final = logging.getLogger("driftlog")
VARIABLE: Final = "DRIFTLOG_BOOTSTRAP_SERVERS"
SHORT_VARIABLE: Final = "DRIFTLOG_BOOTSTRAP"
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
_LIBRDKAFKA_LOG: Final = logging.getLogger("driftlog.librdkafka")
_REPETITION_S: Final = 60.0


class _RepetitionFilter(logging.Filter):
    """librdkafka logs each failed attempt, some ten times a second: each line once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), time.monotonic()
        if now - self._last.get(text, -_REPETITION_S) < _REPETITION_S:
            return False
        if len(self._last) > 1_000:
            self._last.clear()
        self._last[text] = now
        return True


_LIBRDKAFKA_LOG.addFilter(_RepetitionFilter())


def bootstrap(bootstrap_servers: str | Sequence[str] | None) -> str:
    """The addresses to begin with, as librdkafka takes them; None: by variable or default."""
    if bootstrap_servers is None:
        variables = os.environ.get(VARIABLE) or os.environ.get(SHORT_VARIABLE)
        return variables or DEFAULT_BOOTSTRAP
    if isinstance(bootstrap_servers, str):
        return bootstrap_servers
    return ",".join(bootstrap_servers)


def configuration(
    servers: str,
    settings: Mapping[str, Config],
    config: Mapping[str, Any] | None,
    error_callback: Callable[[KafkaError], None],
) -> dict[str, Any]:
    """librdkafka's configuration: the client's settings, and over them the user's *config*.

    Raises:
        ValueError: *config* sets what the client sets itself; the message names the argument.
    """
    given = dict(config or {})
    for name in given:
        if name in RESERVED:
            raise ValueError(f"config {name!r} is set by the client: use {RESERVED[name]}")
    return {
        "bootstrap.servers": servers,
        "client.id": "driftlog-python",
        "logger": _LIBRDKAFKA_LOG,
        "error_cb": error_callback,
        # An agent that stops closes its connections: no error, other agents take over.
        "log.connection.close": False,
        **settings,
        **given,
    }


def kafka_error(exception: KafkaException) -> KafkaError:
    """The error of librdkafka's exception."""
    error = exception.args[0] if exception.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(exception))


def fail(what: str, exception: KafkaException) -> NoReturn:
    """Raise the client's exception for librdkafka's.

    Raises:
        DriftlogError: always.
    """
    raise request_error(what, kafka_error(exception)) from exception


def unreachable(servers: str, timeout_s: float, last_error: str | None) -> DriftlogError:
    """The exception for a cluster that does not answer."""
    why = f" ({last_error})" if last_error else ""
    return UnreachableError(
        f"no broker answered at {servers} within {timeout_s:g} s{why}. Start an agent "
        "there (`driftlog dev --dir DIR`), or name other addresses: bootstrap_servers=…, "
        f"or the environment variable {VARIABLE}."
    )


class Connections:
    """The errors of librdkafka's connections, for the messages of errors that follow from them.

    It never refers to the client that it serves, because librdkafka's handle refers to it.
    """

    def __init__(self, servers: str, config: Mapping[str, Any] | None = None) -> None:
        self.servers = servers
        self._config = config or {}
        self._checked = False
        self.last_error: str | None = None
        self.fatal: KafkaError | None = None
        self._all_down = False

    def check(self, timeout_s: float) -> None:
        """Once, before the first request: see `driftlog.common.bootstrap_probe`.

        Raises:
            UnreachableError: no broker can answer at any of the addresses.
        """
        if not self._checked:
            check_bootstrap(self.servers, self._config, timeout_s)
            self._checked = True

    def failed(self, error: KafkaError) -> None:
        """librdkafka's `error_cb`."""
        if error.fatal():
            self.fatal = error
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            if not self._all_down:
                LOG.warning(
                    "no broker of %s answers (%s); the client retries",
                    self.servers,
                    self.last_error or error.str(),
                )
            self._all_down = True
        else:
            self.last_error = error.str()

    def answered(self) -> None:
        """A broker answered: a later outage logs a new warning."""
        self._all_down = False
