"""Every `sh` and `python` block of the README and docs/ runs, against one `driftlog dev`.

A block has topics of its own: it needs no other block, but where `_TOGETHER` says so.  `python`
blocks of one unit share a process, and so Spark's session: its start is most of what they take.

Shell.
"""

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.components import REPOSITORY
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import install_tools, kafka_jars

pytestmark = [pytest.mark.xdist_group("page_snippets"), pytest.mark.timeout(240)]

_BLOCK: Final = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PAGE: Final = "a page in its order"
_PAIR: Final = "python after the sh before it"
_TOGETHER: Final = {"README.md": _PAGE, "spark.md": _PAIR, "formats.md": _PAIR}
_ELSEWHERE: Final = {"deploy.md"}
"""tests/terraform/test_apply.py runs its blocks: they need what `terraform apply` makes."""

_NAMES: Final = re.compile(
    r"\b(greetings|flights|numbers|digits|letters|departures|arrivals|"
    r"readers|billing|kcats|subscribers|scripts|board|visits)\b(?!\.ndjson)"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Blocks of one page that run one after the other."""

    name: str
    blocks: Sequence[tuple[str, str]]

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.blocks)


def _units() -> Iterator[Unit]:
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        if page.name in _ELSEWHERE:
            continue
        groups: list[list[tuple[str, str]]] = []
        together = _TOGETHER.get(page.name)
        for language, text in _BLOCK.findall(page.read_text()):
            joins = together == _PAGE or (together == _PAIR and language == "python")
            if groups and joins:
                groups[-1].append((language, text))
            else:
                groups.append([(language, text)])
        for number, blocks in enumerate(groups):
            yield Unit(f"{page.name}-{number}", blocks)


UNITS: Final = [pytest.param(unit, id=unit.name) for unit in _units()]


@pytest.fixture(scope="module")
def agent() -> Iterator[DriftlogProcess]:
    """A real `driftlog dev`."""
    with DriftlogProcess() as process:
        yield process


@pytest.fixture(scope="module")
def environment(
    agent: DriftlogProcess, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    """What a person's shell has: the commands on PATH, and the address of the cluster."""
    commands = tmp_path_factory.mktemp("bin")
    if kafka_jars():
        install_tools(commands)
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    addresses = ("DRIFTLOG_BOOTSTRAP", "DRIFTLOG_BOOTSTRAP_SERVERS")
    python = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=1 "
        "--conf spark.ui.enabled=false pyspark-shell",
    }
    return {**os.environ, **dict.fromkeys(addresses, agent.bootstrap), **python, "PATH": path}


@pytest.mark.parametrize("unit", UNITS)
def test_the_blocks_run(
    unit: Unit, agent: DriftlogProcess, environment: Mapping[str, str], tmp_path: Path
) -> None:
    """
    As they stand there, with fewer records, and each line of a `sh` block succeeds.
    """
    needed = [("kcat", "kcat"), ("pyspark", "java"), ("kafka-", "java")]
    for word, command in needed:
        if word in unit.text and shutil.which(command) is None:
            pytest.skip(f"{command} is not installed")
    if "kafka-console" in unit.text and kafka_jars() is None:
        pytest.skip("Kafka's jars are missing: make kafka-jars")
    own = f"_{uuid.uuid4().hex[:8]}"
    programs: list[tuple[str, list[Path]]] = []
    for number, (language, text) in enumerate(unit.blocks):
        program = tmp_path / f"{number}.{language}"
        program.write_text(_as_here(text, own, agent))
        if language == "python" and programs and programs[-1][0] == language:
            programs[-1][1].append(program)
        else:
            programs.append((language, [program]))
    for language, paths in programs:
        start = {"sh": ["bash", "-euo", "pipefail"], "python": [sys.executable, "-c", _RUN]}
        done = subprocess.run(
            [*start[language], *map(str, paths)],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
            cwd=tmp_path,
            env=environment,
        )

        assert 0 == done.returncode, f"{paths[0].read_text()}\n{done.stdout}\n{done.stderr}"


_RUN: Final = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
"""


def _as_here(text: str, own: str, agent: DriftlogProcess) -> str:
    """A block with topics of the unit's own, and the addresses of *agent*."""
    program = _NAMES.sub(lambda name: name[0] + own, text)
    for written, real in {
        "127.0.0.1:9092": agent.bootstrap,
        "127.0.0.1:9644": agent.http.removeprefix("http://"),
        "/tmp/log": str(agent.directory),
        "1_000_000": "3_000",
    }.items():
        program = program.replace(written, real)
    return program
