"""The two suites: `make test`, within ten minutes on two cores, and `make verify` with the rest.

A file belongs to the entry of `SUITES` with the longest path that contains it.  A single test of a
file in `make test` belongs to `make verify` by `pytest.mark.verify`, which stands on it.
Shell.
"""

import re
from functools import cache
from pathlib import Path
from typing import Final, Literal

Suite = Literal["test", "verify"]

TESTS: Final = Path(__file__).resolve().parents[1]

SUITES: Final[dict[str, Suite]] = {
    "agents": "test",
    "agents/handlers/test_kafka_says_so.py": "verify",  # beside Apache Kafka
    "agents/handlers/test_kafka_says_so_to_admins.py": "verify",
    "agents/handlers/test_kafka_says_so_to_clients.py": "verify",
    "agents/log/session/test_keep_alive.py": "verify",  # held-up threads, frozen members of etcd
    "attack": "verify",
    "benchmarks": "test",
    "chaos": "verify",
    "chaos/compacted/test_oracle.py": "test",
    "chaos/test_oracle.py": "test",
    "chaos/test_schedule.py": "test",
    "churn": "verify",
    "clients": "verify",
    "clients/cli/agents": "test",
    "clients/cli/records/test_formats.py": "test",
    "clients/cli/cluster/test_partition_loss_addresses.py": "test",
    "clients/test_python_client.py": "test",
    "clients/test_round_trips.py": "test",
    "contract": "test",
    "deploy": "test",
    "fuzz": "test",
    "long_topics": "verify",
    "metadata": "test",
    "metadata/stores/etcd/test_etcd_faults.py": "verify",
    "metadata/stores/etcd/test_etcd_security.py": "verify",
    "observability": "verify",
    "packaging": "verify",
    "simulation": "test",
    "spark": "verify",
    "spark/bulk_import/test_pieces.py": "test",
    "spark/bulk_import/test_segment_task.py": "test",
    "spark/sink/test_columns.py": "test",
    "spark/sink/test_producer_options.py": "test",
    "spark/sink/test_records.py": "test",
    "spark/test_end_to_end.py": "test",
    "spark/tail": "test",
    "spark/tail/test_tail.py": "verify",
    "spark/test_java.py": "test",
    "spark/test_plan.py": "test",
    "spark/test_s3_access.py": "test",
    "spark/test_s3a.py": "test",
    "spark/test_source_options.py": "test",
    "spark/test_stream_offsets.py": "test",
    "spark/test_tasks.py": "test",
    "terraform": "verify",
    "terraform/test_boot_scripts.py": "test",
    "terraform/test_units.py": "test",
    "test_constructors.py": "test",
    "test_layers.py": "test",
    "test_log_events.py": "test",
    "test_mirror.py": "test",
    "test_names.py": "test",
    "test_pages.py": "test",
    "test_readmes.py": "test",
    "test_suites.py": "test",
    "test_workers.py": "test",
    "tiering": "test",
    "tools": "test",
    "tools/local": "verify",
    "tools/local/test_servers_compose.py": "test",
    "tools/test_demo.py": "verify",
}
"""By path under tests/."""

REAL_PROCESSES: Final = (
    "agents/handlers/test_kafka_says_so.py",
    "agents/handlers/test_kafka_says_so_to_admins.py",
    "agents/handlers/test_kafka_says_so_to_clients.py",
    "agents/log/session/test_keep_alive.py",
    "attack/test_attack.py",
    "attack/test_measures.py",
    "chaos/compacted/test_compacted.py",
    "chaos/test_chaos.py",
    "chaos/test_faults.py",
    "churn",
    "clients",
    "long_topics",
    "metadata/stores/etcd/test_etcd_faults.py",
    "metadata/stores/etcd/test_etcd_interop.py",
    "metadata/stores/etcd/test_etcd_security.py",
    "metadata/stores/etcd/test_etcd_store.py",
    "observability",
    "packaging",
    "spark",  # Spark waits 10 s for each Python worker, and has no setting for it
    "terraform/test_apply.py",
    "terraform/test_confinement.py",
    "terraform/test_etcd_members.py",
    "tools/local/test_supervisor.py",
    "tools/test_demo.py",
)
"""Files and folders whose tests start servers, and kill, freeze or cut off some of them: what they
see depends on how busy the machine is."""


ORDER: Final = (
    "spark",  # all but a few tests are one after the other
    "clients/test_cluster_clients.py",  # the first of those that share an etcd
    "chaos",
    "attack/test_attack.py",
    "clients/test_command_peers.py",
    "clients/test_page_snippets.py",
    "packaging",
    "tools/local",
    "terraform",
    "churn",
    "clients/test_start_refused.py",
)
"""Files and folders whose tests begin first: one after the other they take minutes, and would be
what a run waits for at its end.  Seeds of the simulation are last: they are short and many."""

_BRINGS_VERIFY: Final = re.compile(r"\bmark\.verify\b|\bEACH_VERSION\b")


@cache
def rank_of(path: Path) -> int:
    """The place of the file *path* in the order of a run."""
    below = path.relative_to(TESTS)
    if below.is_relative_to("simulation"):
        return len(ORDER) + 1
    places = (at for at, entry in enumerate(ORDER) if below.is_relative_to(entry))
    return next(places, len(ORDER))


def suite_of(path: Path) -> Suite:
    """The suite of the tests in the file *path* that have no mark of their own.

    Raises:
        LookupError: `SUITES` has no entry for it.
    """
    entry = entry_of(path)
    if entry is None:
        raise LookupError(f"{path}: in no suite; add its folder to tests/support/suites.py")
    return SUITES[entry]


@cache
def entry_of(path: Path) -> str | None:
    """The entry of `SUITES` that the file *path* belongs to."""
    below = path.relative_to(TESTS)
    names = [folder.as_posix() for folder in (below, *below.parents)]
    return next((name for name in names if name in SUITES), None)


@cache
def may_have_tests_of(path: Path, suite: Suite) -> bool:
    """Whether the file *path* can have tests of *suite*: if not, a run of it need not import it.

    A file of `make test` has tests of `make verify` only where its text has the mark, or the list
    that brings it.
    """
    if suite_of(path) == suite:
        return True
    return suite == "verify" and bool(_BRINGS_VERIFY.search(path.read_text()))


@cache
def has_real_processes(path: Path) -> bool:
    """Whether the tests in the file *path* are listed in `REAL_PROCESSES`."""
    return any(path.is_relative_to(TESTS / entry) for entry in REAL_PROCESSES)
