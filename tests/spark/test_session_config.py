"""A job leaves the configs of a user's session as they were.

If it failed: what the user does after a job would be slower, or have another form.
"""

from threading import Event, Thread

import pytest
from pyspark.sql import SparkSession

from driftlog_spark_reader.common.session_config import session_config

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"
DEFAULT = "10000"


@pytest.mark.parametrize("own", [None, DEFAULT, "7"])
def test_a_setting_is_as_it_was_after_a_failure(spark: SparkSession, own: str | None) -> None:
    """
    With a value of its own, also if that is the default's, and without one.
    """
    session = spark.newSession()
    if own is not None:
        session.conf.set(KEY, own)
    found = []

    def choose(now: str) -> str:
        found.append(now)
        return "3"

    def job() -> None:
        with session_config(session, KEY, choose):
            found.append(str(session.conf.get(KEY)))
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        job()

    assert [own or DEFAULT, "3"] == found
    assert own == session.conf.get(KEY, None)


def test_two_jobs_at_once_leave_a_setting_as_it_was(spark: SparkSession) -> None:
    """
    The second one has its value, too, and does not set back that of the first.
    """
    session = spark.newSession()
    found: list[str | None] = []
    begins = Event()

    def second() -> None:
        with session_config(session, KEY, lambda now: f"{now}2"):
            begins.set()
            found.append(session.conf.get(KEY))

    thread = Thread(target=second)
    with session_config(session, KEY, lambda _: "1"):
        thread.start()
        assert not begins.wait(0.1)
        found.append(session.conf.get(KEY))
    thread.join(60)

    assert ["1", f"{DEFAULT}2"] == found
    assert session.conf.get(KEY, None) is None
