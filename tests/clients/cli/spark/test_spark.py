"""`driftlog spark` without PySpark says what to install, and hands on every word of the job.

If it failed: a client's user would see a traceback, or options would be lost on the way.
"""

import importlib.util
import subprocess
import sys

import pytest

from driftlog.cli import main


def test_without_pyspark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Exit status 1, and no traceback.
    """
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    assert 1 == main(["spark", "stats", "flights"])
    assert "pip install 'driftlog[spark]'" in capsys.readouterr().err


def test_all_words_after_the_job_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Also those that look like options of the command, before and behind the topic.
    """
    started: list[list[str]] = []

    def call(line: list[str]) -> int:
        started.append(line)
        return 7

    monkeypatch.setattr(subprocess, "call", call)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    words = ["stats", "--json", "flights", "--conf", "a=b", "--help"]

    assert 7 == main(["spark", *words])
    assert [[sys.executable, "-m", "driftlog_spark_reader.jobs", *words]] == started


def test_an_unknown_job_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Before a process starts.
    """
    with pytest.raises(SystemExit):
        main(["spark", "sort"])
    assert "sort" in capsys.readouterr().err
