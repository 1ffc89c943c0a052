"""The log as JSON: every line is one object, whatever it is about."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from driftlog_agents.process_log.json_lines import json_line
from tests.clients.sockets import Raw
from tests.support.driftlog_process import DriftlogProcess

JSON = ("--log-format", "json")


def objects(text: str) -> list[dict[str, Any]]:
    """Each line of *text*, which must be an object with the three keys first."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(["ts", "level", "event"] == list(line)[:3] for line in found)
    return found


def test_a_log_of_an_agent_is_json(tmp_path: Path) -> None:
    """
    Lines of the start, of a client that sends no request, and the reason for which a second agent
    on the directory does not start.
    """
    data = tmp_path / "data"
    with DriftlogProcess(data, arguments=JSON) as agent:
        with Raw(agent.port) as raw:
            raw.send(b"\0\0\0\1\x1b")
            assert raw.is_closed()
        lines = objects(agent.log)
        second = DriftlogProcess(data, arguments=JSON)
        second.launch()
        code = second.wait(60)
        (refused,) = objects(second.log)[-1:]
        second.close()

    (line,) = (line for line in lines if line["event"] == "frame_refused")
    assert "warning" == line["level"]
    assert "cannot have 1 bytes" in line["reason"]
    assert 1 == code
    assert ("text_written", "error") == (refused["event"], refused["level"])
    assert "driftlog: " in refused["text"]


def test_the_log_is_text_unless_json_is_asked_for(tmp_path: Path) -> None:
    """
    As people read it in a terminal.
    """
    with DriftlogProcess(tmp_path / "data") as agent:
        said = agent.log.splitlines()

    assert said
    assert not any(line.startswith("{") for line in said)


def test_a_traceback_is_in_one_line(tmp_path: Path) -> None:
    """
    Of an error that nobody caught, of an event's `exc_info`, of a record of `logging`.
    """
    script = (
        "import logging, structlog\n"
        "from driftlog_agents.process_log.process_log import JSON, ProcessLog\n"
        "ProcessLog('info', JSON).install()\n"
        "try:\n    1 / 0\n"
        "except ZeroDivisionError:\n"
        "    structlog.get_logger().exception('handler_bug', wait_s=float('inf'))\n"
        "logging.getLogger('x').error('said\\nin two lines')\n"
        "raise ValueError('nobody caught it')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    bug, record, *uncaught = objects(done.stderr)

    assert ("error", "handler_bug", "inf") == (bug["level"], bug["event"], bug["wait_s"])
    assert bug["exception"].splitlines()[-1].endswith("ZeroDivisionError: division by zero")
    assert ("error", "x") == (record["level"], record["logger"])
    assert "nobody caught it" in "".join(line["text"] for line in uncaught)


def test_records_that_name_a_client_have_its_share_of_lines(tmp_path: Path) -> None:
    """
    As events do: a client that has a library of the agent log errors displaces none of the agent's.
    """
    script = (
        "import logging\n"
        "from driftlog_agents.process_log.process_log import JSON, ProcessLog\n"
        "ProcessLog('info', JSON).install()\n"
        "for n in range(500):\n"
        "    logging.getLogger('x').error('failed for %s', n, extra={'client': '10.0.0.1'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    said = [line for line in objects(done.stderr) if line.get("logger") == "x"]
    assert {"10.0.0.1"} == {line["client"] for line in said}
    assert len(said) < 200


def test_what_python_itself_reports_is_json_too(tmp_path: Path) -> None:
    """
    An error in a thread, one that cannot be raised, one of a task that is not awaited, a warning,
    an error group, and a value that cannot be shown.
    """
    script = (
        "import asyncio, gc, logging, threading, warnings, structlog\n"
        "from driftlog_agents.process_log.process_log import JSON, ProcessLog\n"
        "ProcessLog('info', JSON).install()\n"
        "def fail(): raise KeyError('in a thread')\n"
        "thread = threading.Thread(target=fail)\n"
        "thread.start(); thread.join()\n"
        "class Broken:\n"
        "    def __del__(self): raise OSError('unraisable')\n"
        "    def __repr__(self): raise OSError('not shown')\n"
        "Broken()\n"
        "async def task(): raise LookupError('of a task')\n"
        "async def main():\n"
        "    running = asyncio.create_task(task())\n"
        "    await asyncio.sleep(0.01)\n"
        "    del running; gc.collect()\n"
        "asyncio.run(main())\n"
        "warnings.warn('a warning')\n"
        "structlog.get_logger().info('event', value=Broken())\n"
        "structlog.get_logger().error('group', exc_info=ExceptionGroup('two', [ValueError('a')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    said = [json.dumps(line) for line in objects(done.stderr)]

    for text in (
        "in a thread",
        "unraisable",
        "of a task",
        "a warning",
        "log_line_not_shown",
        "two",
    ):
        assert any(text in line for line in said), text


def test_the_keys_that_every_line_has_come_first() -> None:
    """
    Then those of the event, in their order; what is no JSON is shown as Python shows it.
    """
    fields = {"b": 1, "event": "agent_stopped", "a": {1}, "level": "info", "timestamp": "now"}

    line = json_line(None, "", fields)

    assert '{"ts": "now", "level": "info", "event": "agent_stopped", "b": 1, "a": "{1}"}' == line


def test_every_address_has_lines_of_its_own(tmp_path: Path) -> None:
    """
    Where a line names an address without a port, too: refusals of thirty addresses shared the
    lines of one.  An IPv6 address has its port behind brackets.
    """
    script = (
        "import structlog\n"
        "from driftlog_agents.process_log.process_log import JSON, ProcessLog\n"
        "ProcessLog('info', JSON).install()\n"
        "log = structlog.get_logger()\n"
        "for i in range(30):\n"
        "    for n in range(3):\n"
        "        log.warning('connection_refused', client=f'127.0.1.{i}')\n"
        "for i in range(30):\n"
        "    log.warning('connection_refused', client=f'2001:db8::{i}')\n"
        "for port in range(1_000, 1_030):\n"
        "    log.warning('frame_refused', client=f'[::1]:{port}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    told = Counter(line["event"] for line in objects(done.stderr) if "client" in line)

    assert 120 == told["connection_refused"]
    assert told["frame_refused"] < 30
