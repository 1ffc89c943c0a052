"""What tests need beside Python packages, or a skip that says how to get it.

Each function returns a path, or skips the test that called it with the reason and the
command.  `make test` and `make verify` have run those commands, except what only root can
install and what wants a program that is not there.
Shell.
"""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]


def kafka_jars() -> list[Path]:
    """Apache Kafka 4.3's jars, with its tools and clients, to run with :func:`java`."""
    return _jars("kafka-jars", "kafka_2.13-")


def spark_jars() -> list[Path]:
    """What PySpark needs beside its own jars for S3A and for Kafka's source: for `spark.jars`."""
    return _jars("spark-jars", "hadoop-aws-")


def kafka_application_jars() -> list[Path]:
    """Kafka Streams' and Kafka Connect's jars, to run with :func:`java`."""
    return _jars("kafka-applications", "kafka-streams-")


def schema_registry_archive() -> Path:
    """Apicurio Registry, packed."""
    archives = sorted((REPOSITORY / ".cache" / "schema-registry").glob("*.tar.gz"))
    if not archives:
        pytest.skip("no .cache/schema-registry: make schema-registry (it needs mvn)")
    return archives[-1]


def localstack_python() -> Path:
    """The interpreter of the venv that LocalStack has to itself."""
    python = REPOSITORY / ".venv-localstack" / "bin" / "python"
    if not python.exists():
        pytest.skip("no LocalStack: make localstack")
    return python


def kaskade_python() -> Path:
    """The interpreter of the venv that kaskade, a user interface of Kafka, has to itself."""
    python = REPOSITORY / ".venv-kaskade" / "bin" / "python"
    if not python.exists():
        pytest.skip("no kaskade: make kaskade")
    return python


def kcat() -> Path:
    """Debian's kcat, librdkafka's command line."""
    program = shutil.which("kcat") or shutil.which("kafkacat")
    if program is None:
        pytest.skip("no kcat, and only root can install it: apt-get install kcat")
    return Path(program)


def java() -> Path:
    """A Java of at least 17, which Spark 4 and Kafka 4 ask for."""
    program = shutil.which("java")
    if program is None or _java_major(program) < 17:
        pytest.skip("no Java >= 17: apt-get install openjdk-17-jre-headless")
    return Path(program)


def java_classpath() -> str:
    """For `java -cp`: Kafka's jars, as one argument."""
    return ":".join(map(str, kafka_jars()))


def _jars(folder: str, one_of_them: str) -> list[Path]:
    jars = sorted((REPOSITORY / ".cache" / folder).glob("*.jar"))
    if not any(jar.name.startswith(one_of_them) for jar in jars):
        pytest.skip(f"no .cache/{folder}: make {folder} (it needs mvn: apt-get install maven)")
    return jars


@cache
def _java_major(program: str) -> int:
    """17 of ``openjdk version "17.0.15"``; 0 of what does not run, as macOS's stub."""
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', said.stderr)
    return int(found[1]) if found and said.returncode == 0 else 0
