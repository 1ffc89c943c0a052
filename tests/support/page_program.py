"""Runs the blocks of a page one after the other, in one process and with one session of Spark.

    python page_program.py 0.sh 1.python 2.sh …

A `python` block sees the names of those before it, as a reader's interpreter does.  Commands of
Spark jobs run in this process, too: a session of its own would take a JVM for each.

Shell.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

_JOB: Final = "driftlog spark "


def main(paths: list[str]) -> None:
    """Run the blocks, and end with the error of the first that fails."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for path in paths:
        text = Path(path).read_text()
        print(f"── {Path(path).name}", flush=True)  # of the one that fails, too
        if path.endswith(".python"):
            exec(compile(text, path, "exec"), names)  # the page's own code
        elif text.startswith(_JOB):
            for line in text.splitlines():
                _run_job(line)
        else:
            subprocess.run(["bash", "-euo", "pipefail", path], check=True)


def _run_job(line: str) -> None:
    """A command of a job, on the session that runs."""
    from pyspark.sql import SparkSession  # most pages need no Spark

    from driftlog_spark_reader.jobs import command_line
    from driftlog_spark_reader.sessions import command_session

    vars(command_session)["session"] = lambda *_, **__: SparkSession.builder.getOrCreate()
    status = command_line.main(shlex.split(line.removeprefix(_JOB)))
    assert status == 0, f"status {status}: {line}"


if __name__ == "__main__":
    main(sys.argv[1:])
