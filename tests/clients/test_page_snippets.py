"""Every `sh` and `python` block of the README and docs/ runs, against one `driftlog dev`.

A block has topics of its own: it needs no other block, but on the pages of `_TOGETHER`.  These are
read as a whole, and their blocks run in one process (`support/page_program`): the start of a
session of Spark is most of what they take.

Shell.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.components import REPOSITORY
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import install_tools, kafka_jars

pytestmark = [pytest.mark.xdist_group("page_snippets"), pytest.mark.timeout(540)]

_BLOCK: Final = re.compile(r"^( *)```(sh|python)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_TOGETHER: Final = ("README.md", "spark.md", "formats.md")
_ELSEWHERE: Final = ("deploy.md",)
"""tests/terraform/test_apply.py runs its blocks: they need what `terraform apply` makes."""

_CODE: Final = re.compile(r"^ {4,}(?:from driftlog|import |driftlog spark ).*", re.MULTILINE)
_NAMES: Final = re.compile(
    r"\b(greetings|flights|numbers|digits|letters|departures|arrivals|"
    r"readers|billing|kcats|subscribers|scripts|board|visits|users)\b(?!\.ndjson)"
)
_PROGRAM: Final = REPOSITORY / "tests" / "support" / "page_program.py"


@dataclass(frozen=True, slots=True)
class Unit:
    """Blocks of one page that run one after the other."""

    name: str
    blocks: Sequence[tuple[str, str]]

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.blocks)


def _units() -> Iterator[Unit]:
    for page in PAGES:
        if page.name in _ELSEWHERE:
            continue
        blocks = _blocks(page.read_text())
        if page.name in _TOGETHER:
            yield Unit(page.name, blocks)
        else:
            yield from (Unit(f"{page.name}-{n}", [block]) for n, block in enumerate(blocks))


def _blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each, also of those in lists."""
    return [(language, textwrap.dedent(text)) for _, language, text in _BLOCK.findall(page)]


PAGES: Final = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
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
    jars = ",".join(map(str, _kafka_source()))
    python = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=1 "
        f"--conf spark.ui.enabled=false {jars and f'--jars {jars}'} pyspark-shell",
    }
    return {**os.environ, **dict.fromkeys(addresses, agent.bootstrap), **python, "PATH": path}


@pytest.mark.parametrize("unit", UNITS)
def test_the_blocks_run(
    unit: Unit, agent: DriftlogProcess, environment: Mapping[str, str], tmp_path: Path
) -> None:
    """
    As they stand there, with fewer records, and each line of a `sh` block succeeds.
    """
    needed = [("kcat", "kcat"), ("session(", "java"), ("kafka-", "java")]
    for word, command in needed:
        if word in unit.text and shutil.which(command) is None:
            pytest.skip(f"{command} is not installed")
    if "kafka-console" in unit.text and kafka_jars() is None:
        pytest.skip("Kafka's jars are missing: make kafka-jars")
    if '"kafka"' in unit.text and not _kafka_source():
        pytest.skip("Spark's Kafka source is missing: make spark-jars")
    places = {
        "127.0.0.1:9092": agent.bootstrap,
        "127.0.0.1:9644": agent.http.removeprefix("http://"),
        "old-kafka:9092": agent.bootstrap,
        "agents:9092": agent.bootstrap,
        "s3://bucket/prefix": str(agent.directory / "objects"),
        "/tmp/log": str(agent.directory),
        "s3a://": f"{tmp_path}/",
        "/opt/spark-jars": str(_kafka_source()[0].parent) if _kafka_source() else "",
        "1_000_000": "3_000",
    }
    own = f"_{uuid.uuid4().hex[:8]}"
    programs = [tmp_path / f"{n}.{language}" for n, (language, _) in enumerate(unit.blocks)]
    for program, (_, text) in zip(programs, unit.blocks, strict=True):
        text = _NAMES.sub(lambda name: name[0] + own, text)
        for written, real in places.items():
            text = text.replace(written, real)
        program.write_text(text)

    done = subprocess.run(
        [sys.executable, "-P", str(_PROGRAM), *map(str, programs)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        cwd=tmp_path,
        env=environment,
    )

    assert 0 == done.returncode, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", _TOGETHER)
def test_all_code_of_a_page_that_runs_is_in_blocks(page: str) -> None:
    """
    What is indented is output: it does not run.
    """
    (path,) = (path for path in PAGES if path.name == page)

    assert [] == _CODE.findall(_BLOCK.sub("", path.read_text()))


def test_a_block_in_a_list_runs_as_it_is_read() -> None:
    """
    Without the indentation of its item.
    """
    page = "* Do:\n\n  ```sh\n  for i in 1 2; do\n    echo\n  done\n  ```\n"

    assert [("sh", "for i in 1 2; do\n  echo\ndone\n")] == _blocks(page)


def _kafka_source() -> list[Path]:
    """The jars of Spark's Kafka source, without those of S3A; empty where nobody fetched them."""
    folder = REPOSITORY / ".cache" / "spark-jars"
    return [*folder.glob("*kafka*.jar"), *folder.glob("commons-pool2-*.jar")]
