"""Prints the agents' /readyz, once an answer takes longer than five seconds.

A command waits for answers for up to minutes, because an outage of the bucket may end.  Meanwhile
a thread reads the agents' HTTP addresses from the brokers' configs, requests /readyz, and prints it
again only when an agent becomes ready or unready.
Shell.
"""

import argparse
import threading
import time
import urllib.error
import urllib.request
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    ConfigResource,
    ResourceType,
)

from driftlog.cli.common.output import complain
from driftlog.cli.connection.connection import bootstrap, properties
from driftlog_agents.process_log.escapes import OWN_CHARACTERS, escaped

HTTP_CONFIG: Final = "driftlog.http.address"
"""The broker config that has the address of the agent's HTTP port."""

_SILENCE_S: Final = 5.0
_LOOK_S: Final = 0.25
_ANSWER_S: Final = 3.0
_MOST_BYTES: Final = 10_000


class ReadinessNotice:
    """The notice of one command; `waits` and `rests` say whether it waits for an answer."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._since: float | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()

    def waits(self) -> None:
        """The command waits for an answer from now on."""
        self._since = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def waits_still(self) -> None:
        """The command waits for an answer, perhaps since before."""
        if self._since is None:
            self.waits()

    def rests(self) -> None:
        """The command waits for no answer."""
        self._since = None

    def _run(self) -> None:
        told: list[bool] | None = None
        while not self._ended.wait(_LOOK_S):
            since = self._since
            if since is None or time.monotonic() - since < _SILENCE_S:
                continue
            lines, ready = _readiness(self._options)
            if self._ended.is_set() or self._since != since or ready == told:
                continue
            complain(f"no answer for {time.monotonic() - since:.0f} s, still waiting; {lines}")
            told = ready


def _readiness(options: argparse.Namespace) -> tuple[str, list[bool]]:
    """The text of the agents' /readyz, and which of them are ready."""
    try:
        admin = AdminClient({**properties(options), "log_level": 0})
        nodes = admin.describe_cluster(request_timeout=_ANSWER_S).result().nodes
        asked = {
            node.id: admin.describe_configs(
                [ConfigResource(ResourceType.BROKER, str(node.id))], request_timeout=_ANSWER_S
            )
            for node in sorted(nodes, key=lambda node: int(node.id))
        }
    except KafkaException:
        return f"no broker at {bootstrap(options)} answers", []
    lines, ready = [], []
    for node, futures in asked.items():
        try:
            (configs,) = (future.result() for future in futures.values())
        except KafkaException:
            is_ready, text = False, "does not answer"
        else:
            entry = configs.get(HTTP_CONFIG)
            if entry is None or not entry.value:
                continue
            is_ready, text = _readyz(str(entry.value))
        ready.append(is_ready)
        lines.append(f"agent {node} {text}")
    return "; ".join(lines) or "the brokers have no /readyz", ready


def _readyz(address: str) -> tuple[bool, str]:
    url = f"http://{address}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:
            return True, f"says at {url}: {_text(answer.read(_MOST_BYTES))}"
    except urllib.error.HTTPError as error:
        return False, f"says at {url}: {_text(error.read(_MOST_BYTES))}"
    except OSError as error:
        return False, f"does not answer at {url}: {error}"


def _text(body: bytes) -> str:
    lines = body.decode(errors="replace").strip().splitlines()
    return "\n".join(escaped(line, OWN_CHARACTERS) for line in lines)
