"""Nothing acknowledged is lost while real processes are killed, frozen and cut off."""

from pathlib import Path

import pytest

from tests.support.components import localstack_python
from tests.support.etcd_server import newest_version
from tests.support.module_run import run_module

_OPTIONS = ("--seed", "387", "--seconds", "48", "--agents", "3", "--rate", "15")
_STORES = ("--stores", "--seed", "2", "--seconds", "10", "--agents", "2", "--rate", "10")


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("chaos")
def test_nothing_acknowledged_is_lost_while_everything_fails(tmp_path: Path) -> None:
    """
    Agents and etcd's members are killed, frozen and cut off, S3 fails: what was acknowledged is in
    the log, once, in order, at its offset, and consumers never see it change.
    """
    _run(_OPTIONS, tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("chaos")
def test_nothing_acknowledged_is_lost_where_etcd_loses_its_data_and_gets_them_back(
    tmp_path: Path,
) -> None:
    """
    etcd is restored from an older copy and wiped under running agents: each of them says so, and
    acknowledges nothing that is not there when the newest data are back and agents start again.
    """
    _run(_STORES, tmp_path)


def _run(options: tuple[str, ...], folder: Path) -> None:
    newest_version()
    localstack_python()

    run_module("tests.chaos", *options, folder=folder, timeout_s=580)
