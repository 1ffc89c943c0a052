"""An agent needs no system call and no memory that its unit denies.

systemd does not run here.  Linux denies the agent memory that is writable and executable, as the
unit does, and strace notes each system call; the unit's filter is expanded by systemd itself.

Shell.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer

from tests.support.components import REPOSITORY
from tests.support.driftlog_process import driftlog_command
from tests.support.process_usage import free_port, wait_until

pytestmark = [pytest.mark.timeout(180)]

UNIT: Final = REPOSITORY / "deploy" / "systemd" / "driftlog.service"

_CONFINED: Final = """
import ctypes, os, sys

PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
"""

_OF_ROOT: Final = {"fchown"}
"""SQLite gives its files the owner of the database, where it runs as root."""


def _filter(name: str) -> set[str]:
    """System calls of a group, by systemd."""
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True
    ).stdout
    calls: set[str] = set()
    for word in (line.strip() for line in told.splitlines()[1:]):
        if word.startswith("@"):
            calls |= _filter(word)
        elif word and not word.startswith("#"):
            calls.add(word)
    return calls


def test_an_agent_stays_within_its_unit(tmp_path: Path) -> None:
    """
    It starts, takes records, seals and serves them, and drains.
    """
    for command in ("strace", "systemd-analyze"):
        if shutil.which(command) is None:
            pytest.skip(f"no {command}: apt-get install strace systemd")
    tried = [sys.executable, "-c", _CONFINED, shutil.which("true") or "/bin/true"]
    refused = subprocess.run(tried, capture_output=True, text=True, check=False).stderr
    if refused:
        pytest.skip(f"Linux before 6.3 denies no memory that is writable and executable: {refused}")
    kafka, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    out, calls = tmp_path / "out", tmp_path / "calls"
    agent = [str(driftlog_command()), "agent", "run", "--dev", "--dir", str(tmp_path / "data")]
    line = [
        *("strace", "-f", "-qq", "-o", str(calls), sys.executable, "-c", _CONFINED),
        *(sys.executable, *agent, "--listener", kafka, "--http-listener", http),
    ]
    with out.open("wb") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_until(lambda: "driftlog is ready" in out.read_text(), process, 60, out)
        _use(kafka, http)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        code = process.wait(60)

    used = set(re.findall(r"(?m)^\d+ +(\w+)\(", calls.read_text(errors="replace")))
    denied, given = set[str](), set[str]()
    for group in re.findall(r"(?m)^SystemCallFilter=(\S+)$", UNIT.read_text()):
        (denied if group.startswith("~") else given).update(_filter(group.removeprefix("~")))
    assert "MemoryDenyWriteExecute=yes" in UNIT.read_text()
    assert code == 0
    assert set() == used - (given - denied) - (_OF_ROOT if os.geteuid() == 0 else set())


def _use(kafka: str, http: str) -> None:
    producer = Producer({"bootstrap.servers": kafka, "compression.type": "zstd"})
    for number in range(1_000):
        producer.produce("t", b"x" * 500, key=str(number).encode())
    assert 0 == producer.flush(60)
    seal = urllib.request.Request(f"http://{http}/topics/t/seal", b"", {"X-Driftlog": "1"})
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(seal, timeout=60).close()
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    assert 1_000 == len(consumer.consume(1_000, timeout=60))
    consumer.close()
