"""Each test of a package stands at the path of the module that it tests.

If it failed: a reader of `agents/driftlog_agents/groups/offsets.py` would not find its tests at
`tests/agents/groups/test_offsets.py`, or would find tests of a module that has gone.
"""

from pathlib import Path
from typing import Final

from tests.support.components import REPOSITORY
from tests.support.suites import TESTS

PACKAGES: Final = {
    "agents": REPOSITORY / "agents" / "driftlog_agents",
    "clients": REPOSITORY / "client" / "driftlog",
    "metadata": REPOSITORY / "metadata" / "driftlog_metadata",
    "tiering": REPOSITORY / "tiering" / "driftlog_tiering",
    "tools": REPOSITORY / "tools",
}
"""By folder of tests/."""

SCENARIO_FOLDERS: Final = {"agents/handlers", "agents/log", "agents/network", "clients"}
"""Files right in these are scenarios, too: several modules, through a socket or a whole engine."""

SCENARIOS: Final = {
    "agents/groups/test_hostile_groups.py",
    "agents/log/leadership/test_claim_plans.py",
    "agents/log/recovery/test_retained_claims.py",
    "agents/protocol/test_protocol_against_kafka.py",
    "agents/protocol/test_protocol_codecs.py",
    "agents/protocol/test_protocol_definitions.py",
    "agents/protocol/test_protocol_limits.py",
    "agents/test_left_out.py",
    "metadata/stores/etcd/test_etcd_faults.py",
    "metadata/stores/etcd/test_etcd_interop.py",
    "metadata/stores/etcd/test_etcd_security.py",
    "metadata/stores/test_random_histories.py",
    "metadata/transactions/test_transactions.py",
    "tiering/formats/test_java_records.py",
    "tools/test_ci_run.py",
    "tools/test_demo.py",
}
"""Other files that test several modules together."""


def _has_module(path: Path) -> bool:
    """Whether *path* is ``FOLDER/test_NAME.py`` or ``FOLDER/test_NAME_ASPECT.py`` of a module."""
    folder, *inner = path.parent.parts
    package = PACKAGES[folder].joinpath(*inner)
    names = {module.stem for module in (*package.glob("*.py"), *package.glob("*.pyx"))}
    words = path.stem.removeprefix("test_").split("_")
    return any("_".join(words[:count]) in names for count in range(1, len(words) + 1))


def test_each_test_stands_at_the_path_of_its_module() -> None:
    """
    But for the scenarios, each of which is still needed.
    """
    files = [
        path.relative_to(TESTS)
        for folder in PACKAGES
        for path in sorted((TESTS / folder).rglob("test_*.py"))
    ]
    lost = {
        path.as_posix()
        for path in files
        if path.parent.as_posix() not in SCENARIO_FOLDERS and not _has_module(path)
    }

    assert SCENARIOS == lost
