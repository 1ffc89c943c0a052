"""A real Prometheus for tests: scrapes what it is told to once a second, and answers PromQL.

    promtool()                       its tool, or a skip that says how to get it
    PrometheusServer(config, data)   a context; `query` asks it

Shell.
"""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from tests.support.components import REPOSITORY
from tests.support.process_usage import free_port

_START_S: Final = 60.0
_END_S: Final = 10.0


def _program(name: str) -> Path:
    found = (REPOSITORY / ".cache" / "prometheus").glob(f"*/{name}")
    newest = max(found, key=lambda path: _number(path.parent.name), default=None)
    if newest is None:
        pytest.skip("no .cache/prometheus: make prometheus (it needs apt-get and dpkg-deb, or go)")
    return newest


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def promtool() -> Path:
    """Prometheus' tool of the newest version."""
    return _program("promtool")


class PrometheusServer:
    """See the module.

    Args:
        config: the path of its configuration.
        data: an empty directory, which gets its database and its log.
    """

    def __init__(self, config: Path, data: Path) -> None:
        self._log = data / "prometheus.log"
        self._url = f"http://127.0.0.1:{free_port()}"
        self._command = [
            str(_program("prometheus")),
            *("--config.file", str(config), "--storage.tsdb.path", str(data / "tsdb")),
            *("--web.listen-address", self._url.removeprefix("http://")),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            deadline = time.monotonic() + _START_S
            while not self._is_ready():
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.1)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series at this moment.

        Raises:
            HTTPError: the expression is wrong.
        """
        asked = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{asked}", timeout=30) as answer:
            body: dict[str, Any] = json.load(answer)
        return [(each["metric"], float(each["value"][1])) for each in body["data"]["result"]]

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
