"""The image of an agent holds what it needs, runs as its user, and drains on SIGTERM.

There is no container engine here: each step of the Dockerfile is done in a folder of its own.  What
a step needs root or a registry of images for is only read.

Shell.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

from tests.support.components import REPOSITORY
from tests.support.process_usage import free_port, stop_process, wait_until

pytestmark = [
    pytest.mark.wheel,
    pytest.mark.timeout(420),
    pytest.mark.xdist_group("wheel"),
]

DOCKERFILE: Final = REPOSITORY / "agents" / "Dockerfile"
_KILLED_AFTER_S: Final = 35
"""What the Dockerfile advises for ``docker stop -t``."""


def stages() -> list[list[tuple[str, str]]]:
    """Instructions and their arguments, by stage."""
    found: list[list[tuple[str, str]]] = []
    for line in DOCKERFILE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        instruction, _, argument = line.partition(" ")
        if instruction == "FROM":
            found.append([])
        found[-1].append((instruction, argument))
    return found


def arguments(stage: list[tuple[str, str]], instruction: str) -> list[str]:
    return [argument for name, argument in stage if name == instruction]


def is_ignored(path: str) -> bool:
    """Whether the build context lacks *path*: the last pattern that matches it decides."""
    lines = (REPOSITORY / "agents" / "Dockerfile.dockerignore").read_text().splitlines()
    ignored = False
    for line in lines:
        pattern = line.removeprefix("!").removeprefix("**/")
        if not pattern or line.startswith("#"):
            continue
        anywhere = line.startswith("**/")
        parts = Path(path).parts
        tried = parts if anywhere else ("/".join(parts[: n + 1]) for n in range(len(parts)))
        if any(fnmatch(part, pattern) and (anywhere or "/" not in part) for part in tried):
            ignored = not line.startswith("!")
    return ignored


def test_the_image_runs_as_a_user_and_in_exec_form() -> None:
    """
    A shell in front would be process 1, and would pass no SIGTERM on.
    """
    final = stages()[-1]

    assert ["10001:10001"] == arguments(final, "USER")
    entry = json.loads(arguments(final, "ENTRYPOINT")[0])
    assert ["/opt/driftlog/bin/driftlog", "agent", "run"] == entry
    assert [] == arguments(final, "CMD")
    assert {"python:3.13-slim"} == {
        argument.split()[0] for stage in stages() for argument in arguments(stage, "FROM")
    }


def test_the_context_has_what_is_copied_and_no_more() -> None:
    """
    No test, no `.git`, no compiled kernel of another Python.
    """
    for line in arguments(stages()[0], "COPY"):
        for source in shlex.split(line)[:-1]:
            assert (REPOSITORY / source).exists()
            assert not is_ignored(source)

    for path in (
        ".git/config",
        "tests/conftest.py",
        "terraform/README.md",
        "tiering/driftlog_tiering/batches/_kernel.cpython-311-x86_64-linux-gnu.so",
        "agents/driftlog_agents/__pycache__/a.pyc",
    ):
        assert is_ignored(path), path


def test_the_steps_make_an_agent_that_is_healthy_and_drains(tmp_path: Path) -> None:
    """
    Copied, built and installed as the first stage says; run as the second one does.
    """
    build, final = stages()
    source, installed = tmp_path / "source", tmp_path / "opt" / "driftlog"
    tracked = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files", "-co", "--exclude-standard"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    copied = {name for line in arguments(build, "COPY") for name in shlex.split(line)[:-1]}
    for name in tracked:
        if name.split("/")[0] in copied and not is_ignored(name) and (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, source / name)
    [install] = [line for line in arguments(build, "RUN") if "pip install" in line]
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "python").symlink_to(sys.executable)
    done = subprocess.run(
        ["sh", "-euc", install.replace("/opt/driftlog", str(installed))],
        cwd=source,
        env={
            **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            "PATH": f"{commands}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stdout[-2000:] + done.stderr[-4000:]

    settings = dict(line.split("=", 1) for line in arguments(final, "ENV"))
    kafka, http = free_port(), free_port()
    entry = [
        word.replace("/opt/driftlog", str(installed))
        for word in json.loads(arguments(final, "ENTRYPOINT")[0])
    ]
    out, log = tmp_path / "out", tmp_path / "log"
    environment = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        **settings,
        "DRIFTLOG_DIR": str(tmp_path / "data"),
        "DRIFTLOG_LISTENER": settings["DRIFTLOG_LISTENER"].replace("9092", str(kafka)),
        "DRIFTLOG_HTTP_LISTENER": settings["DRIFTLOG_HTTP_LISTENER"].replace("9644", str(http)),
        "DRIFTLOG_ADVERTISED_LISTENER": f"127.0.0.1:{kafka}",
    }
    with out.open("wb") as output, log.open("wb") as errors:
        process = subprocess.Popen(
            entry, env=environment, cwd=tmp_path, stdout=output, stderr=errors
        )
    try:
        wait_until(lambda: "driftlog is ready" in out.read_text(), process, 60, log)
        check = re.sub(r"^.*?CMD ", "", arguments(final, "HEALTHCHECK")[0])
        words = [
            word.replace("/opt/driftlog", str(installed)).replace("9644", str(http))
            for word in json.loads(check)
        ]
        # Proxies are for the agent's way to S3, not for its own address.
        proxied = environment | {"http_proxy": f"http://127.0.0.1:{free_port()}", "no_proxy": ""}
        healthy = subprocess.run(words, check=False, env=proxied).returncode
        began = time.monotonic()
        code = stop_process(process, _KILLED_AFTER_S)
        drained_s = time.monotonic() - began
        unhealthy = subprocess.run(words, capture_output=True, check=False).returncode
    finally:
        stop_process(process, 5)

    assert (0, 0) == (healthy, code)
    assert drained_s < _KILLED_AFTER_S
    assert 0 != unhealthy
