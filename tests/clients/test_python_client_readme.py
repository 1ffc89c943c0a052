"""The programs of client/README.md, as they stand there, with fewer records.

Shell.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.clients.python_client import new_topic

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]

_README: Final = Path(__file__).resolve().parents[2] / "client" / "README.md"
_PROGRAMS: Final = re.findall(
    r"^```python\n(.*?)^```", _README.read_text(), re.DOTALL | re.MULTILINE
)


def run(servers: str, program: str) -> str:
    """What it prints; it must succeed, and say nothing on standard error."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "DRIFTLOG_BOOTSTRAP_SERVERS": servers},
    )
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    return done.stdout


def test_the_programs_of_the_readme_run(servers: str) -> None:
    """
    In their order; the first one in five lines, and without a setting.
    """
    produce, consume, asynchronous, administer = _PROGRAMS
    assert 5 >= len([line for line in produce.splitlines() if line])
    assert "range(1_000_000)" in produce
    name = new_topic(servers, 2)
    fewer = [
        program.replace("1_000_000", "3_000")
        .replace("numbers", name)
        .replace("flights", f"{name}-f")
        for program in (produce, consume, asynchronous, administer)
    ]

    assert "" == run(servers, fewer[0])
    lines = run(servers, fewer[1]).splitlines()
    assert 3_002 == len(lines) - 1
    assert 2_999 == max(int(line.rpartition("b'")[2].strip(" '") or 0) for line in lines[1:])
    assert "3004" == run(servers, fewer[2]).splitlines()[-1]
    offsets, *lags, reset = run(servers, fewer[3]).splitlines()
    assert "{0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0}" == offsets
    assert 2 == sum(int(line.split()[-1]) for line in lags)
    assert 2 == reset.count("after=0")
