"""The `driftlog` command where only the client is installed: `pip install driftlog`.

Broken: a user without the extra sees a traceback, or no hint of what to install.
"""

import subprocess
import venv
from importlib import metadata
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("metadata", "tiering", "agents", "client")

pytestmark = pytest.mark.xdist_group("command")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python with driftlog and confluent-kafka, and nothing else."""
    folder = tmp_path_factory.mktemp("client") / "venv"
    venv.create(folder, symlinks=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    for name in ("confluent-kafka", "driftlog"):
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files if file.parts[0] != ".."}:
            source = Path(str(metadata.distribution(name).locate_file(top)))
            if source.is_dir():
                (site / top).symlink_to(source)
    (site / "driftlog.pth").write_text("\n".join(str(REPOSITORY / name) for name in PACKAGES))
    return folder / "bin" / "python"


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-I", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("line", "extras"),
    [
        ("agent run --dir {dir}", "pip install 'driftlog[agent]'"),
        ("dev --dir {dir}", "pip install 'driftlog[agent]'"),
        ("dev --agents 2 --dir {dir}", "pip install 'driftlog[agent]'"),
        ("segments list t --store {dir}", "pip install 'driftlog[agent]' or pip install"),
        ("segments describe --store {dir}", "pip install 'driftlog[agent]' or pip install"),
    ],
)
def test_a_command_that_needs_an_extra_says_which(
    python: Path, tmp_path: Path, line: str, extras: str
) -> None:
    """
    In one line, and nothing is written to the directory.
    """
    done = run(python, "-m", "driftlog.cli", *line.format(dir=tmp_path).split())

    assert (1, "") == (done.returncode, done.stdout)
    assert 1 == len(done.stderr.splitlines()), done.stderr
    assert extras in done.stderr
    assert [] == list(tmp_path.iterdir())


def test_the_client_needs_no_extra(python: Path) -> None:
    """
    Its commands and its names load; `segment_files` says what it needs.
    """
    shown = run(python, "-m", "driftlog.cli", "topics", "list", "-b", "127.0.0.1:1")
    names = run(python, "-c", "from driftlog import Admin, Consumer, Producer, DriftlogError")
    reading = run(python, "-c", "from driftlog import segment_files")

    assert "nothing listens at 127.0.0.1:1" in shown.stderr
    assert 0 == names.returncode, names.stderr
    assert "pip install 'driftlog[spark]'" in reading.stderr
