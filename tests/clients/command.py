"""The `driftlog` command, run to its end as a person types it.

Shell.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from tests.support.driftlog_process import driftlog_command


def run(
    *arguments: str,
    bootstrap: str | None = None,
    stdin: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 90,
) -> subprocess.CompletedProcess[bytes]:
    """Run it; whatever it says, it is no traceback."""
    command = driftlog_command()
    assert command is not None, "no driftlog command: make setup"
    known = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTLOG_")}
    done = subprocess.run(
        [command, *arguments],
        input=b"" if stdin is None else stdin,
        capture_output=True,
        check=False,
        timeout=timeout_s,
        env=known
        | ({} if bootstrap is None else {"DRIFTLOG_BOOTSTRAP": bootstrap})
        | dict(environment or {}),
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def said(bootstrap: str, *arguments: str, stdin: bytes | None = None) -> str:
    """Standard output of what must succeed."""
    done = run(*arguments, bootstrap=bootstrap, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def read(bootstrap: str, *arguments: str) -> Any:
    """What a reading command says to programs."""
    return json.loads(said(bootstrap, *arguments, "--json"))


def refused(bootstrap: str, *arguments: str, stdin: bytes | None = None, status: int = 1) -> str:
    """Standard error of what must fail with *status*."""
    done = run(*arguments, bootstrap=bootstrap, stdin=stdin)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stderr.decode()
