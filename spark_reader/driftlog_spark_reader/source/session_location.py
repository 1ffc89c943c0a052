"""The session's ``spark.driftlog.location``, as a Python data source can see it.

Spark gives a Python data source its options, and no setting of the session: its code runs in a
process of its own.  What the session was started with stands on the command line of the JVM that
is an ancestor of this process, and in ``conf/spark-defaults.conf``.  A location that is set later,
with ``spark.conf.set`` or in SQL, is not seen: `driftlog_spark_reader.register` gives it to the
format.

Shell.
"""

import os
from pathlib import Path
from typing import Final

SETTING: Final = "spark.driftlog.location"
ENVIRONMENT: Final = "DRIFTLOG_LOCATION"

_MAX_ANCESTORS: Final = 8


def session_location() -> str | None:
    """The location that the session was started with; None: none is known.

    Of several, the order is Spark's: the session's own, then the defaults' file; the environment
    variable ``DRIFTLOG_LOCATION`` is last.
    """
    return _from_command_line() or _from_defaults() or os.environ.get(ENVIRONMENT)


def _from_command_line() -> str | None:
    """Of the nearest ancestor that was given it: ``--conf spark.driftlog.location=…``."""
    process = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        try:
            arguments = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
            status = Path(f"/proc/{process}/stat").read_text()
        except (OSError, UnicodeDecodeError):  # No Linux, or the process is gone.
            return None
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if equals and name.removeprefix("-D") == SETTING:
                return value
        # "pid (name) state parent …"; the name may have spaces and parentheses.
        process = int(status.rpartition(")")[2].split()[1])
        if process <= 1:
            return None
    return None


def _from_defaults() -> str | None:
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    if folder is None:
        return None
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        words = line.replace("=", " ", 1).split(None, 1)
        if len(words) == 2 and words[0] == SETTING:
            return words[1].strip()
    return None
