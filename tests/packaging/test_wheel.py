"""The wheel holds everything, installs into an empty environment, and runs there.

Shell.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY

pytestmark = [
    pytest.mark.wheel,
    pytest.mark.timeout(420),
    pytest.mark.xdist_group("wheel"),
]

IMPORT_EVERYTHING = """
import importlib, pathlib, sys

import driftlog_tiering.batches._kernel as kernel

site = pathlib.Path(kernel.__file__).parents[1]
assert pathlib.Path(sys.prefix) in site.parents, site
for path in sorted(site.glob("driftlog*/**/*.py")):
    if path.stem == "__main__":
        continue
    parts = path.relative_to(site).with_suffix("").parts
    module = ".".join(parts[:-1] if path.stem == "__init__" else parts)
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Spark is 400 MB, and an extra of its own.
        assert parts[0] == "driftlog_spark_reader", (module, error)
        assert error.name.partition(".")[0] in ("pyspark", "py4j"), (module, error)
print(kernel.__file__)
"""


def build(out: Path, **environment: str) -> Path:
    """The wheel that pip builds of the source distribution, by the build hook, in *out*."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(out),
        cwd=str(REPOSITORY))  # fmt: skip
    [source] = out.glob("driftlog-*.tar.gz")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q",
        "-w", str(out), str(source), **environment)  # fmt: skip
    [wheel] = out.glob("driftlog-*.whl")
    return wheel


def run(*command: str, cwd: str = "/", **environment: str) -> str:
    """Its standard output; what it said on standard error where it fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        cwd=cwd,
        env=os.environ | environment,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


def test_wheel_in_an_empty_environment_imports_every_module_and_the_compiled_kernel(
    wheel: Path, tmp_path: Path
) -> None:
    """
    `pip install 'driftlog[agent]'` is all that an agent needs, and it runs compiled code.
    """
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    run(str(python), "-m", "pip", "install", "-q", f"{wheel}[agent]")

    kernel = run(str(python), "-W", "error::RuntimeWarning", "-c", IMPORT_EVERYTHING).strip()

    assert tmp_path / "venv" in Path(kernel).parents
    assert 0 == _dev_from_ready_to_drained(tmp_path / "venv" / "bin" / "driftlog", tmp_path)


def _dev_from_ready_to_drained(command: Path, folder: Path) -> int:
    """Start `driftlog dev` from the installed wheel, wait until it is ready, SIGTERM; its code."""
    arguments = [str(command), "dev", "--dir", str(folder / "log"), "--listener", "127.0.0.1:0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        code = process.wait(timeout=60)
    assert line.startswith("driftlog is ready: bootstrap 127.0.0.1:"), line
    return code


def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    """
    No tests, no benchmarks, no generated C; types and licence ship.
    """
    names = zipfile.ZipFile(wheel).namelist()
    packages = {
        "driftlog",
        "driftlog_agents",
        "driftlog_metadata",
        "driftlog_spark_reader",
        "driftlog_tiering",
        "pyspark_driftlog",
    }

    assert packages | {"driftlog-0.2.0.dist-info"} == {name.partition("/")[0] for name in names}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert [] == [name for name in names if name.endswith(".c")]
    assert 1 == sum(name.endswith(".so") for name in names)
    assert "driftlog-0.2.0.dist-info/licenses/LICENSE" in names
    assert "cp3" in wheel.name


def test_build_without_a_compiler_gives_a_pure_wheel(tmp_path: Path) -> None:
    """
    An install does not fail for want of a C compiler: the kernel's Python twin takes over.
    """
    copy = tmp_path / "source"
    tracked = run("git", "-C", str(REPOSITORY), "ls-files", "-co", "--exclude-standard").split("\n")
    for name in filter(None, tracked):
        if (REPOSITORY / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((REPOSITORY / name).read_bytes())
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q",
        "-w", str(tmp_path), str(copy), CC=str(tmp_path / "no-such-compiler"))  # fmt: skip

    [pure] = tmp_path.glob("driftlog-*.whl")

    assert pure.name.endswith("-py3-none-any.whl")
    assert [] == [name for name in zipfile.ZipFile(pure).namelist() if name.endswith(".so")]
