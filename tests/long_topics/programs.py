"""One Java program of the harness: started, killed, started again.  Its log is kept.

Shell.
"""

import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from os import environ
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

_STOP_S: Final = 60.0
_LOOK_S: Final = 0.25
JVM: Final = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class JavaProgram:
    """A process of *command* that ends with the thread that started it.

    Args:
        folder: where it runs; its standard error, and its output unless *asked*, go to ``log``.
        asked: its standard input and output are pipes.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        asked: bool = False,
    ) -> None:
        keeper = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
        self._command = [*keeper, *command]
        self._folder = folder
        self._environment = {**environ, **(environment or {})}
        self._pipe = subprocess.PIPE if asked else None
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        assert self._process is None, "started twice"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=self._pipe or subprocess.DEVNULL,
                stdout=self._pipe or log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
            )

    def kill(self) -> None:
        """SIGKILL; a repeat is harmless."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, or the end of its standard input; wait for its end."""
        self._end(0 if self._pipe else signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.communicate(timeout=_STOP_S)  # closes its standard input
        self._process = None

    def ask(self, line: str, last: Sequence[str]) -> list[str]:
        """The lines of its answer, up to one of *last*.

        Raises:
            RuntimeError: it has ended.
        """
        assert self._process is not None, "not started"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer: list[str] = []
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
            while not answer or answer[-1] not in last:
                printed = self._process.stdout.readline()
                if not printed:
                    raise BrokenPipeError
                answer.append(printed.decode().rstrip("\n"))
        except BrokenPipeError as error:
            raise RuntimeError(f"it has ended: {self.log[-2000:]}") from error
        return answer

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def check_alive(self) -> None:
        """
        Raises:
            RuntimeError: it has ended.
        """
        assert self._process is not None, "not started"
        if self._process.poll() is not None:
            raise RuntimeError(f"ended with {self._process.returncode}: {self.log[-3000:]}")


def wait_for(
    what: str, found: Callable[[], bool], seconds: float, program: JavaProgram | None = None
) -> None:
    """Return when *found* is true.

    Raises:
        TimeoutError: it is not, after *seconds*.
        RuntimeError: *program* has ended.
    """
    give_up = time.monotonic() + seconds
    while not found():
        if program is not None:
            program.check_alive()
        if time.monotonic() > give_up:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(_LOOK_S)


def rest(method: str, url: str, body: object = None, *, timeout_s: float = 30) -> Any:
    """The JSON that the server answers; None: it answered nothing, or that there is no such thing.

    Raises:
        OSError: no answer, or a refusal that a repeat may change.
    """
    request = urllib.request.Request(url, method=method)
    request.add_header("Content-Type", "application/json")
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, data, timeout=timeout_s) as answer:
            said = answer.read()
    except HTTPError as error:
        if error.code == 404:
            return None
        raise OSError(f"{method} {url}: {error.code} {error.read()[:500]!r}") from error
    return json.loads(said) if said else None


def repeated(method: str, url: str, body: object = None, *, seconds: float = 120) -> Any:
    """As `rest`, again and again until it is answered."""
    answers: list[Any] = []

    def asked() -> bool:
        try:
            answers.append(rest(method, url, body))
        except OSError as error:
            failures.append(str(error))
            return False
        return True

    failures: list[str] = []
    try:
        wait_for(f"{method} {url}", asked, seconds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {failures[-1]}") from error
    return answers[-1]
