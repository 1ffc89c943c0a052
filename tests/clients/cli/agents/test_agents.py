"""`driftlog agent config` shows what an agent would start with, and where that comes from."""

import json
from pathlib import Path

import pytest

from driftlog.cli import main


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "agent.toml"
    found.write_text(f'dir = "{tmp_path}/data"\nrack = "a"\nlog.retention.ms = 5000\n')
    monkeypatch.setenv("DRIFTLOG_CONFIG_FILE", str(found))
    return found


def test_config_shows_each_value_with_its_source(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Of a default, a line of the file, a variable and a flag; no password.
    """
    monkeypatch.setenv("DRIFTLOG_ETCD", "http://127.0.0.1:1")
    monkeypatch.setenv("DRIFTLOG_ETCD_PASSWORD", "secret")

    status = main(["agent", "config", "--json", "--dev", "--config", "num.partitions=3"])

    out = capsys.readouterr().out
    found = {row["name"]: (row["value"], row["source"], row["place"]) for row in json.loads(out)}
    assert 0 == status
    assert "secret" not in out
    assert ("5000", "file", f"{file}:3") == found["log.retention.ms"]
    assert ("a", "file", f"{file}:2") == found["rack"]
    assert ("http://127.0.0.1:1", "env", "DRIFTLOG_ETCD") == found["etcd"]
    assert ("3", "flag", "--config") == found["num.partitions"]
    assert ("127.0.0.1:9092", "default", None) == found["listener"]
    assert (f"{file.parent}/data/objects", "default", None) == found["store"]
    # The default of an agent that behaves as `driftlog dev`.
    assert ("0", "default", None) == found["group.initial.rebalance.delay.ms"]
    assert (None, "default", None) == found["log.retention.minutes"]


def test_config_tells_faults_and_exits_with_2(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Those of single values with their lines, and of values that do not fit together.
    """
    file.write_text("rack = 'a'\nlog.retention.mss = 5\n")
    assert 2 == main(["agent", "config"])
    assert f"driftlog: {file}:2: 'log.retention.mss' is no setting" in capsys.readouterr().err

    file.write_text("dir = 'd'\ngroup.min.session.timeout.ms = 5000000\n")
    assert 2 == main(["agent", "config"])
    assert f"group.min.session.timeout.ms: file {file}:2" in capsys.readouterr().err

    file.write_text("etcd-user = 'a'\ndir = 'd'\n")
    assert 2 == main(["agent", "config"])
    assert "--etcd-… without --etcd" in capsys.readouterr().err

    file.write_text("dir = 'd'\nlistener = ['0.0.0.0:9092']\n")
    assert 2 == main(["agent", "config"])
    assert "clients cannot connect to 0.0.0.0" in capsys.readouterr().err

    file.write_text("dir = 'd'\nhttp-listener = '127.0.0.1'\n")
    assert 2 == main(["agent", "config"])
    assert "--http-listener '127.0.0.1' is not HOST:PORT" in capsys.readouterr().err

    file.write_text("rack = 'a'\n")
    assert 2 == main(["agent", "config"])
    assert "no directory: give --dir DIR" in capsys.readouterr().err

    file.write_bytes(b"rack = '\xff'\n")
    assert 2 == main(["agent", "config"])
    assert f"{file}: not UTF-8" in capsys.readouterr().err

    file.unlink()
    assert 2 == main(["agent", "config"])
    assert f"{file}: No such file" in capsys.readouterr().err


def test_no_agent_starts_with_a_fault(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Nothing is made on the disk.
    """
    file.write_text(f'dir = "{file.parent}/data"\nlisten = "127.0.0.1:0"\n')

    assert 2 == main(["agent", "run"])
    assert 2 == main(["dev", "--agents", "2"])

    assert "did you mean listener" in capsys.readouterr().err
    assert not (file.parent / "data").exists()


@pytest.mark.parametrize(
    ("said", "roles"), [('"seal, serve"', "serve,seal"), ('["seal"]', "seal"), ('"serve"', "serve")]
)
def test_roles_stand_in_one_order_wherever_they_come_from(
    file: Path, capsys: pytest.CaptureFixture[str], said: str, roles: str
) -> None:
    """
    A list of texts, or one text with commas; default is both.
    """
    assert 0 == main(["agent", "config", "--json"])
    found = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert "serve,seal" == found["roles"]

    file.write_text(f'dir = "d"\nroles = {said}\n')
    assert 0 == main(["agent", "config", "--json"])
    found = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert roles == found["roles"]


@pytest.mark.parametrize("said", ["", "lead", "serve,", "serve,seals"])
def test_an_unknown_or_empty_role_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    """
    The error has the place, and the roles that there are.
    """
    file.write_text(f'dir = "d"\nroles = "{said}"\n')
    assert 2 == main(["agent", "config"])
    told = capsys.readouterr().err
    assert f"{file}:2: roles: " in told
    assert "is no role: an agent has serve or seal" in told
