"""The Java that Spark starts its JVM with, and whether it is one that Spark runs on.

Shell.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from driftlog_spark_reader.common.errors import SessionError

OLDEST: Final = 17
"""Of Spark 4."""

_INSTALL: Final = (
    "install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install "
    "openjdk@17; conda install openjdk=17), and set JAVA_HOME to its folder if it is not on PATH"
)
_TIMEOUT_S: Final = 60


def check_java(environ: Mapping[str, str]) -> None:
    """Check the Java that Spark's scripts find: that of JAVA_HOME, or the first one on PATH.

    Raises:
        SessionError: there is none, or it is too old.
    """
    home = environ.get("JAVA_HOME")
    if home:
        command = str(Path(home) / "bin" / "java")
        found = command if os.access(command, os.X_OK) else None
        where = f"JAVA_HOME is {home}, which has no bin/java"
    else:
        found = shutil.which("java", path=environ.get("PATH"))
        where = "there is no java on PATH, and JAVA_HOME is not set"
    if found is None:
        raise SessionError(f"Spark needs Java {OLDEST} or later: {where}; {_INSTALL}")
    try:
        done = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        said = done.stderr + done.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    version = java_version(said)
    if version is None:
        raise SessionError(
            f"Spark needs Java {OLDEST} or later, and {found} is none that works: "
            f"{said.strip()[:200] or 'it says nothing'}; {_INSTALL}"
        )
    if version < OLDEST:
        raise SessionError(
            f"Spark needs Java {OLDEST} or later, and {found} is Java {version}; {_INSTALL}"
        )


def java_version(said: str) -> int | None:
    """The version in what ``java -version`` prints; None where it prints none.

    ``"1.8.0_392"`` is 8, ``"17.0.15"`` and ``"17-ea"`` are 17.
    """
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None
