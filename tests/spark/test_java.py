"""A missing or too old Java is told before Spark fails with a stack trace of its scripts."""

from pathlib import Path

import pytest

from driftlog_spark_reader.common.errors import SessionError
from driftlog_spark_reader.sessions.java import check_java, java_version


def java(folder: Path, said: str, code: int = 0) -> Path:
    """A `java` in *folder* that prints *said*."""
    folder.mkdir(parents=True)
    command = folder / "java"
    command.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {code}\n")
    command.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("The operation couldn’t be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_versions_are_read_as_java_prints_them(said: str, expected: int | None) -> None:
    """
    Of Oracle and OpenJDK, before and after Java 9; macOS has a `java` that is none.
    """
    assert expected == java_version(said)


def test_a_java_that_spark_runs_on_passes(tmp_path: Path) -> None:
    """
    On PATH, or JAVA_HOME's, which Spark's scripts take first.
    """
    old = java(tmp_path / "old", 'openjdk version "11.0.2"')
    new = java(tmp_path / "new" / "bin", 'openjdk version "21.0.1"')

    check_java({"PATH": str(new)})
    check_java({"PATH": str(old), "JAVA_HOME": str(tmp_path / "new")})


def test_no_java_is_told(tmp_path: Path) -> None:
    """
    The message says where it was looked for, and what to install.
    """
    with pytest.raises(SessionError, match=r"no java on PATH.*JAVA_HOME is not set.*apt-get"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(SessionError, match="has no bin/java"):
        check_java({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)})


def test_a_java_that_is_too_old_or_none_is_named(tmp_path: Path) -> None:
    """
    With its path and version.
    """
    old = java(tmp_path / "old", 'openjdk version "11.0.2"')
    none = java(tmp_path / "none", "Unable to locate a Java Runtime", code=1)

    with pytest.raises(SessionError, match=f"{old}/java is Java 11; install"):
        check_java({"PATH": str(old)})
    with pytest.raises(SessionError, match="none that works: Unable to locate"):
        check_java({"PATH": str(none)})
