"""Upkeep gives way to serving: else clients wait for compaction on a full machine."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from driftlog_agents.process.thread_priority import lower_priority

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere nice values are of whole processes"
)


def _nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_the_threads_of_a_pool_are_lower_and_no_other_thread_is() -> None:
    before = _nice()
    with ThreadPoolExecutor(1, "upkeep", lower_priority, (7,)) as pool:
        assert min(before + 7, 19) == pool.submit(_nice).result()
    assert before == _nice()


def test_the_lowest_priority_is_the_limit() -> None:
    with ThreadPoolExecutor(1, "upkeep", lower_priority, (40,)) as pool:
        assert 19 == pool.submit(_nice).result()
