"""The format knows the location that its session was started with, and says where to give one.

If it failed: `format("driftlog")` without a location would read another log, or none.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from driftlog_spark_reader.source.data_source import DriftlogSource

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="command lines of ancestors are read from /proc"
)

# As Spark has it: the JVM has the argument, and starts the process that asks.
_ASKS = (
    "from driftlog_spark_reader.source import session_location as s; print(s.session_location())"
)
_STARTS = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {_ASKS!r}]))"


def asked_below(*arguments: str, **environ: str) -> str:
    """What a child of a process with these *arguments* finds."""
    clean = {n: v for n, v in os.environ.items() if n not in ("SPARK_HOME", "DRIFTLOG_LOCATION")}
    found = subprocess.run(
        [sys.executable, "-c", _STARTS, *arguments],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


@pytest.mark.parametrize("prefix", ["", "-D"])
def test_it_is_on_the_command_line_of_an_ancestor(prefix: str) -> None:
    """
    As `--conf` of spark-submit, or as a property of the JVM; before the defaults and the variable.
    """
    setting = f"{prefix}spark.driftlog.location=s3://bucket/log=1"

    assert "s3://bucket/log=1" == asked_below("--conf", setting, DRIFTLOG_LOCATION="/other")


def test_it_is_in_the_defaults_of_the_installation(tmp_path: Path) -> None:
    """
    In `conf/spark-defaults.conf`, with a space or an equals sign, before the variable.
    """
    (tmp_path / "conf").mkdir()
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    for line in ("spark.driftlog.location   /data/log", "spark.driftlog.location=/data/log"):
        defaults.write_text(f"# ours\nspark.driftlog.locations /x\n{line}\n")
        assert "/data/log" == asked_below(SPARK_HOME=str(tmp_path), DRIFTLOG_LOCATION="/other")


def test_it_is_in_the_environment() -> None:
    """
    Last of the three; and where there is none, none is invented.
    """
    assert "/data/log" == asked_below(DRIFTLOG_LOCATION="/data/log")
    assert "None" == asked_below()


def test_without_one_the_error_says_where_to_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The option, the setting of the session's start, or the variable.
    """
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "DRIFTLOG_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    source = DriftlogSource({"subscribe": "flights"})

    with pytest.raises(ValueError, match=r"where is the log\?.*option location.*start the session"):
        source.reader(source.schema())
