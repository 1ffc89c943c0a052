"""Clients are limited by the files that the process may open, and by nothing smaller."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("soft", "hard", "possible"), [(64, 4096, 3008), (100, 100, 64)])
def test_a_connection_is_possible_for_each_file_that_is_left(
    soft: int, hard: int, possible: int
) -> None:
    """
    A shell's soft limit, often 1,024, is raised; a thousand files are the agent's own, and 64
    the HTTP port's.
    """
    script = f"""if True:
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
        from driftlog_agents.network.limits.open_files import connections_possible
        print(connections_possible(64), *resource.getrlimit(resource.RLIMIT_NOFILE))
    """

    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    assert [possible, hard, hard] == [int(number) for number in told.split()]
