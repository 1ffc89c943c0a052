"""What holds for every test: its suite, its environment, and servers that it asks for by name.

Shell.
"""

import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.support.quick_jvm import SPARK
from tests.support.suites import Suite, has_real_processes, may_have_tests_of, rank_of, suite_of
from tests.support.time_left import ALL_S, skip_without_time

pytest_plugins = ["tests.support.s3_servers"]


_SELECTS: Final[dict[str, Suite]] = {"not verify": "test", "verify": "verify"}
"""What `-m` says in the Makefile, and the suite that it selects."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests are no garbage: Python searches them for none, neither now nor while tests
    run.  The search was a quarter of a collection, and a third of the CPU of many unit tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run of one suite does not import files that have no test of it."""
    suite = _SELECTS.get(config.option.markexpr)
    if suite is None or not collection_path.match("test_*.py"):
        return None
    return None if may_have_tests_of(collection_path, suite) else True


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its suite, and whether it starts real processes, and begin with the
    longest: `support/suites.py`."""
    for item in items:
        if suite_of(item.path) == "verify":
            item.add_marker("verify")
        elif item.get_closest_marker("verify") and not may_have_tests_of(item.path, "verify"):
            # `make verify` would leave it out.
            raise pytest.UsageError(f"{item.nodeid}: its file does not say `mark.verify`")
        if has_real_processes(item.path):
            item.add_marker("real_processes")
    items.sort(key=lambda item: rank_of(item.path))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A run that may take no longer skips what is left, and says so."""
    skip_without_time(f"make {suite_of(item.path)}", later_s=ALL_S)


# Examples share two cores with servers: how long one takes says nothing about the code.
settings.register_profile(
    "here", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# In CI a red build is the change's doing, not the dice's; elsewhere `make test` throws them.  (The
# examples are a function of the source: Hypothesis draws from the literals that it finds there.)
settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# A machine may have credentials of its own: no test shall use them, nor its proxy of S3.
for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_CA_BUNDLE"]:
    del os.environ[name]
os.environ.update(SPARK)
os.environ.update(
    AWS_ACCESS_KEY_ID="testing",
    AWS_SECRET_ACCESS_KEY="testing",
    AWS_DEFAULT_REGION="us-east-1",
    AWS_EC2_METADATA_DISABLED="true",
    AWS_CONFIG_FILE=os.devnull,
    AWS_SHARED_CREDENTIALS_FILE=os.devnull,
)
