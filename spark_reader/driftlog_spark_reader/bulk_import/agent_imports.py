"""The agents' side of an import, over their HTTP ports: begin, renew, publish, abandon.

Any agent takes each request, and each may be repeated: one that does not answer is left for the
next.  A `Renewal` says all the while that the importer lives; agents delete what an import wrote
that was not renewed for the cluster's grace.

Adapter.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import UUID

from driftlog import Admin, DriftlogError
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster
from driftlog_spark_reader.common.errors import ImportTopicError, TopicExistsError

_HTTP_CONFIG: Final = "driftlog.http.address"
_POLICY_CONFIG: Final = "log.cleanup.policy"
_REQUEST_S: Final = 130.0
"""Longer than an agent takes for any of them."""

_PATIENCE_S: Final = 300.0
"""While no agent answers: the restart of a cluster."""

_PAUSE_S: Final = 1.0
_LONGEST_RENEWAL_S: Final = 60.0

_HEADERS: Final = {"Content-Type": "application/json", "X-Driftlog": "import"}
"""An agent refuses a POST that a web page can send."""

_CONFLICT: Final = 409
_TRY_AGAIN: Final = frozenset({408, 429, 500, 502, 503})


@dataclass(frozen=True)
class BegunImport:
    """What an agent answered to `AgentImports.begin`."""

    topic_id: UUID
    author: Cluster
    """The cluster, at its format level: manifests are of it."""
    grace: Grace


class AgentImports:
    """See the module.

    Raises:
        ImportTopicError: no agent answers, or none has an HTTP port.
    """

    def __init__(
        self, bootstrap_servers: str | Sequence[str] | None, config: Mapping[str, Any] | None
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._config = config
        self.cleanup_policy = ""
        """Of a topic without a ``cleanup.policy`` of its own, as the agents have it."""
        try:
            self._addresses = self._find()
        except DriftlogError as error:
            raise ImportTopicError(
                f"no agent to import with: {error}; give bootstrap_servers=, where clients reach "
                "the cluster"
            ) from error
        if not self._addresses:
            raise ImportTopicError(
                f"the brokers at {bootstrap_servers} have no HTTP port (--http-listener of "
                "driftlog agent run), which an import needs, or are not driftlog's"
            )

    def _find(self) -> list[str]:
        """The HTTP ports of the agents; raises DriftlogError: no broker answers."""
        with Admin(bootstrap_servers=self._bootstrap_servers, config=self._config) as admin:
            found: list[str] = []
            for broker in admin.cluster().brokers:
                with suppress(DriftlogError):  # the others will do
                    configs = admin.configs.describe_broker(broker.node_id)
                    entry = configs.get(_HTTP_CONFIG)
                    if entry is not None and entry.value:
                        found.append(entry.value)
                    policy = configs.get(_POLICY_CONFIG)
                    if policy is not None and policy.value:
                        self.cleanup_policy = policy.value
            return found

    def begin(self, topic: str, partitions: int, configs: Mapping[str, str]) -> BegunImport:
        """Begin the import of *topic*.

        Raises:
            TopicExistsError: there is such a topic.
            ImportTopicError: it cannot be made.
        """
        body = {"topic": topic, "partitions": partitions, "configs": dict(configs)}
        answer = self._ask("/imports", body)
        return BegunImport(
            UUID(answer["topic_id"]),
            Cluster(answer["cluster_id"], answer["format_level"]),
            Grace(answer["grace_ms"]),
        )

    def renew(self, topic_id: UUID) -> None:
        """Say that the importer lives; raises as `begin`."""
        self._ask(f"/imports/{topic_id}/renew", {})

    def publish(self, topic: str, topic_id: UUID, ends: Sequence[int]) -> None:
        """Make the import a topic.  *ends*: of the records of each partition.

        Raises: as `begin`.
        """
        self._ask(f"/imports/{topic_id}/publish", {"topic": topic, "ends": list(ends)})

    def abandon(self, topic: str, topic_id: UUID, *, is_publication_sent: bool) -> str:
        """Have the agents delete what the import wrote; returns what the user must know, if any.

        *is_publication_sent*: `publish` was called: its answer may be lost.
        """
        try:
            self._ask(f"/imports/{topic_id}/abandon", {}, patience_s=0.0)
        except ImportTopicError as error:
            if not is_publication_sent:
                return f"agents delete what it wrote a grace later: {error}"
            return (
                f"the topic may be published ({error}): check with driftlog topics describe "
                f"{topic}, whose id is {topic_id} then; agents delete what was not published"
            )
        return ""

    def _ask(
        self, path: str, body: dict[str, Any], patience_s: float = _PATIENCE_S
    ) -> dict[str, Any]:
        until_s = time.monotonic() + patience_s
        while True:
            failed = ""
            for address in self._addresses:
                try:
                    return _post(address, path, body)
                except urllib.error.HTTPError as error:
                    failed = _said(error)
                    if error.code == _CONFLICT:
                        raise TopicExistsError(
                            f"{failed}  An import makes a new topic: choose another name, or "
                            "delete this one"
                        ) from error
                    if error.code not in _TRY_AGAIN:
                        raise ImportTopicError(failed) from error
                except OSError as error:
                    failed = f"the agent does not answer at {address}: {error}"
            if time.monotonic() >= until_s:
                raise ImportTopicError(failed)
            time.sleep(_PAUSE_S)
            with suppress(DriftlogError):  # agents come and go while an import runs
                self._addresses = self._find() or self._addresses


def _post(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://{address}{path}", json.dumps(body).encode(), _HEADERS, method="POST"
    )
    with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{error} (an agent of an older release?)"


class Renewal:
    """Renews an import in a thread, until it is closed.

    Args:
        renew: renews it once.
    """

    def __init__(self, grace: Grace, renew: Callable[[], None]) -> None:
        self._wait_s = min(grace.short_ms / 1000, _LONGEST_RENEWAL_S)
        self._renew = renew
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="import renewal", daemon=True)

    def _run(self) -> None:
        while not self._over.wait(self._wait_s):
            with suppress(ImportTopicError):  # the publication says whether the import has ended
                self._renew()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
