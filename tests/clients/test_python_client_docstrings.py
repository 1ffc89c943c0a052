"""The programs in the docstrings of the Python client's classes.

Without this: help(Consumer) shows a program that fails where it is the first one that a user tries.
Shell.
"""

import ast
import os
import re
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]

_PACKAGE: Final = Path(__file__).resolve().parents[2] / "client" / "driftlog"
_TOPIC: Final = re.compile(r'"(greetings|flights)"')


def programs() -> Iterator[tuple[str, str]]:
    """Each class whose docstring has a program, and the program."""
    for module in sorted(_PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef) and (docstring := ast.get_docstring(node)):
                for block in re.findall(r"::\n\n((?:    .*\n|\n)+)", docstring):
                    yield node.name, textwrap.dedent(block)


_PROGRAMS: Final = dict(programs())


def test_each_client_shows_a_program() -> None:
    """
    The five classes that users begin with.
    """
    assert {"Admin", "AsyncConsumer", "AsyncProducer", "Consumer", "Producer"} <= set(_PROGRAMS)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_each_program_runs_alone(servers: str, name: str) -> None:
    """
    On a topic that no other program has used; it prints what it shows, and no error.
    """
    done = subprocess.run(
        [sys.executable, "-c", _TOPIC.sub(f'"t-{uuid.uuid4().hex[:12]}"', _PROGRAMS[name])],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "DRIFTLOG_BOOTSTRAP_SERVERS": servers},
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert "" != done.stdout
