"""Three minutes of hostile clients; `make attack` makes all attacks, for as long as you like."""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.components import REPOSITORY

_FAMILIES: Final = {
    "answers": 20,
    "batches": 20,
    "floods": 30,
    "fuzzing": 40,
    "groups": 15,
    "http": 15,
    "process": 20,
    "topics": 15,
}
"""Seconds of each, beside starts."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", _FAMILIES)
def test_one_client_cannot_take_an_agent_down(
    request: pytest.FixtureRequest, tmp_path: Path, family: str
) -> None:
    """
    No attack of a family ends an agent, stalls its event loop for 250 ms, takes more memory than
    its budget, or leaves something behind that cannot be read after a restart.
    """
    faulthandler.cancel_dump_traceback_later()  # of what takes a hundred seconds, as this does
    options = ("--seed", "1", "--seconds", str(_FAMILIES[family]), "--only", family)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.attack", *options],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=880,
        check=False,
    )

    print(ended.stdout)
    assert 0 == ended.returncode, ended.stdout
