"""A config of a Spark session that a job changes, and sets back: `session_config`.

For what Spark takes from the session only.

Shell.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHANGES: Final = Lock()
"""One at a time: of two that overlap, the later one would find the value of the earlier one, and
set it back when that has ended."""


@contextmanager
def session_config(spark: "SparkSession", key: str, choose: Callable[[str], str]) -> Iterator[None]:
    """Let *key* have the value that *choose* makes of its value, or of its default.

    Afterwards the session is as it was: a config that had no value of its own has none.  A second
    change in this process, of any config and session, waits for that.
    """
    with _CHANGES:
        before = spark.conf.get(key, None)
        spark.conf.set(key, choose(spark.conf.get(key) or ""))
        try:
            yield
        finally:
            if before is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, before)
