"""One command line for two clusters, and what is the same in what it prints.

A step runs a tool of Kafka against Apache Kafka and against driftlog at once.  What it prints of
both, without what `MASKS` says must differ between any two clusters, is the same text; where it
is not, the step names a `Difference`, which must be found on both sides: one that is gone fails.
Shell.
"""

import difflib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.clients.kafka_tools import KafkaTools, Running, Said
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import KafkaPeer

_SETTLE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Mask:
    """What differs between any two clusters, or runs: *pattern* is printed as <name>."""

    name: str
    why: str
    pattern: str


MASKS: Final = (
    Mask("", "where in the tool's own code an error came up", r"(?m)^\t(?:at |\.\.\.) ?.*\n?"),
    Mask("address", "each has its port", r"(?:127\.0\.0\.1|localhost)(?:[:\t ]+\d+)?\b"),
    Mask("topic id", "ids are random", r"(?<=TopicId: )\S{22}"),
    Mask("cluster id", "ids are random", r"(?<=Cluster ID: )\S{22}"),
    Mask("run", "which thread of our JVM it is", r"\[run-\d+\]"),
    Mask("client", "clients are counted in a JVM", r"\b(?:adminclient|producer|consumer)-\d+"),
    Mask("member", "member ids are random", r"-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    Mask("uuid", "member ids of KIP-848 are random", r"(?<![\w-])[\w-]{22}(?=\s|$)"),
    Mask("group", "a consumer without a group takes a random one", r"console-consumer-\d+"),
    Mask("time", "runs are at different times", r"(?<=CreateTime:)\d{13}"),
    Mask("time", "runs are at different times", r'(?<="timestamp":)\d{13}'),
    Mask("time", "runs are at different times", r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.:,]\d{3}Z?"),
    Mask(
        "patience", "which call was waiting, and how often it asked", r"(?<=TimeoutException: ).*"
    ),
    Mask("rate", "as fast as it is", r'(?<="avg_throughput":)[\d.E]+'),
    Mask("directory", "each has its place", r'(?<="logDir":")[^"]+|(?<="log_dirs":\[")[^"]+'),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """What the two say differently, and why that is right: a pattern of each.

    Where there is nothing at all in what one of them says, its pattern is "".
    """

    name: str
    why: str
    kafka: str
    driftlog: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command; ``@`` is the cluster's address, appended as ``--bootstrap-server`` if left out.

    ``reads``: it changes nothing, and is asked again while a cluster may not have settled.
    ``unordered``: lines come in any order.
    """

    command: str
    stdin: str = ""
    differs: tuple[Difference, ...] = ()
    unordered: bool = False
    reads: bool = True
    timeout_s: float = 60


def step(command: str, *differs: Difference, **more: Any) -> Step:
    """A step; one that creates, alters, deletes or writes is done once."""
    changes = re.search(r" --(?:create|alter|delete\S*|execute|reset-offsets)\b|producer", command)
    more.setdefault("reads", changes is None)
    return Step(command=command, differs=differs, **more)


class Pair:
    """Apache Kafka, a driftlog agent, and the JVM of the tools."""

    def __init__(self, parent: Path) -> None:
        self.kafka = KafkaPeer(parent)
        self.driftlog = DriftlogProcess(parent=parent)
        self.tools = KafkaTools()
        self._threads = ThreadPoolExecutor(2)

    def __enter__(self) -> Self:
        try:
            starts = [self._threads.submit(at.start) for at in (self.kafka, self.driftlog)]
            for start in starts:
                start.result()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tools.__exit__(kind, error, trace)
        self._threads.shutdown()
        self.kafka.close()
        self.driftlog.close()

    def run(self, command: str, stdin: str = "", timeout_s: float = 60) -> tuple[Said, Said]:
        """Of Kafka and of driftlog."""
        both = self.start(command, stdin)
        return tuple(run.wait(timeout_s) for run in both)  # type: ignore[return-value]

    def start(self, command: str, stdin: str = "") -> tuple[Running, Running]:
        """Against Kafka and against driftlog, side by side."""
        tool, *arguments = shlex.split(command)
        if not any("@" in argument for argument in arguments):
            arguments += ["--bootstrap-server", "@"]
        runs = [
            self.tools.start(tool, [a.replace("@", at) for a in arguments], stdin)
            for at in (self.kafka.bootstrap, self.driftlog.bootstrap)
        ]
        return runs[0], runs[1]

    def compare(self, steps: Iterable[Step]) -> None:
        """Run *steps* one after another; each must say the same of both.

        Raises:
            AssertionError: with the differences of all of them.
        """
        wrong = [found for one in steps if (found := self._compared(one))]
        assert not wrong, "\n\n".join(wrong)

    def _compared(self, one: Step) -> str:
        give_up = time.monotonic() + _SETTLE_S
        while True:
            kafka, driftlog = self.run(one.command, one.stdin, one.timeout_s)
            found = different(one, kafka, driftlog)
            if not found or not one.reads or time.monotonic() > give_up:
                return found
            time.sleep(0.5)


def different(one: Step, kafka: Said, driftlog: Said) -> str:
    """What is not the same and not named, as a diff; empty: nothing."""
    theirs, ours = _text(kafka), _text(driftlog)
    gone = []
    for difference in one.differs:
        both = difference.kafka and difference.driftlog
        sign = f"<{difference.name}>" if both else ""
        theirs, in_theirs = _replaced(difference.kafka, sign, theirs)
        ours, in_ours = _replaced(difference.driftlog, sign, ours)
        if not (in_theirs and in_ours):
            who = "driftlog" if in_theirs else "Kafka"
            gone.append(f"{difference.name!r} is not in what {who} says ({difference.why})")
    left, right = _lines(theirs, one.unordered), _lines(ours, one.unordered)
    if left == right and not gone:
        return ""
    diff = difflib.unified_diff(left, right, "Kafka", "driftlog", lineterm="", n=1)
    return "\n".join([f"$ {one.command}", *gone, *list(diff)[2:]])


def _replaced(pattern: str, sign: str, text: str) -> tuple[str, bool]:
    if not pattern:
        return text, True
    text, count = re.subn(pattern, sign, text, flags=re.MULTILINE | re.DOTALL)
    return text, count > 0


def _text(said: Said) -> str:
    text = f"exit {said.status}\n{said.out.rstrip()}\n--\n{said.err.rstrip()}\n"
    for mask in MASKS:
        text = re.sub(mask.pattern, f"<{mask.name}>" if mask.name else "", text)
    return text


def _lines(text: str, unordered: bool) -> list[str]:
    """Without the padding of tables, which is as wide as what is in them; JSON in one order."""
    lines = [_ordered(re.sub(r"  +", "  ", line).strip()) for line in text.splitlines()]
    lines = [line for line in lines if line]
    return sorted(lines) if unordered else lines


def _ordered(line: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        return json.dumps(_sorted(json.loads(line)))
    except ValueError:
        return line


def _sorted(value: Any) -> Any:
    match value:
        case dict():
            return {key: _sorted(value[key]) for key in sorted(value)}
        case list():
            return sorted((_sorted(part) for part in value), key=repr)
        case _:
            return value


def steps_of(commands: str, more: Callable[[str], Step] = step) -> Sequence[Step]:
    """A step for each line of *commands* that is not empty."""
    return [more(line.strip()) for line in commands.splitlines() if line.strip()]
