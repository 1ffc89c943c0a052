"""If it failed: an agent would start that no client could ever use."""

from pathlib import Path

import pytest

from driftlog_agents.process.startup_configs import Options, StartError, as_roles, check_roles
from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings


def test_an_agent_that_does_not_serve_needs_others_that_may() -> None:
    """
    Its own metadata store has no other agents.
    """
    for roles in (["serve"], ["serve", "seal"]):
        check_roles(Options(directory=Path("d"), roles=as_roles(roles)))
    etcd = EtcdSettings(endpoints=("http://127.0.0.1:1",))
    check_roles(Options(directory=Path("d"), roles=as_roles(["seal"]), etcd=etcd))

    with pytest.raises(StartError, match="--roles seal: without --etcd"):
        check_roles(Options(directory=Path("d"), roles=as_roles(["seal"])))
