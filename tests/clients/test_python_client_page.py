"""The Python client's programs of docs/clients.md, as they stand there, with fewer records.

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

_PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
_PROGRAMS: Final = [
    program
    for program in re.findall(r"^```python\n(.*?)^```", _PAGE.read_text(), re.DOTALL | re.MULTILINE)
    if "from driftlog import" in program
]


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


def test_the_programs_of_the_page_run(servers: str) -> None:
    """
    The first one in five lines, and without a setting; each prints what it wrote.
    """
    produce, consume, asynchronous, administer = _PROGRAMS
    assert 5 >= len([line for line in produce.splitlines() if line])
    assert "range(1_000_000)" in produce
    numbers, digits, letters = (new_topic(servers, 2) for _ in range(3))
    group = f"g-{digits}"

    assert "" == run(servers, produce.replace("1_000_000", "3_000").replace("numbers", numbers))
    lines = run(servers, consume.replace("digits", digits).replace("readers", group)).splitlines()
    assert 3 == len(lines)
    assert {"b'1'", "b'2'"} == {line.split()[-1] for line in lines[1:]}
    assert "2" == run(servers, asynchronous.replace("letters", letters)).splitlines()[-1]
    program = administer.replace("departures", f"{numbers}-d").replace("board", f"{group}-d")
    count, offsets, *lags, reset = run(servers, program).splitlines()
    assert "1" == count
    assert "{0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0}" == re.sub(r"(\d): 1", r"\1: 0", offsets)
    assert 0 == sum(int(line.split()[-1]) for line in lags)
    assert 1 <= reset.count("after=0")
