"""
If this fails, a command that opens the stores of a cluster itself ends with a traceback, or with an
exit status that says something else.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from driftlog.cli.cluster.cluster_stores import open_bucket, store_errors
from driftlog.cli.common.errors import CommandError, UsageError
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.stores.object_store import NotFoundError


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UnavailableError("503"), CommandError.status, "503"),
        (CorruptError("damaged"), CommandError.status, "damaged"),
        (TimeoutError(), CommandError.status, "TimeoutError()"),
        (ValueError("ftp://"), UsageError.status, "ftp://"),
        (CommandError("agents run"), CommandError.status, "agents run"),
    ],
)
def test_an_error_of_a_store_ends_the_command(error: Exception, status: int, message: str) -> None:
    """
    The message is the store's, and a location that is none is a wrong command line.
    """
    with pytest.raises(CommandError) as raised, store_errors():
        raise error

    assert (status, message) == (raised.value.status, str(raised.value))


def test_a_bug_is_no_error_of_a_store() -> None:
    """
    It keeps its traceback.
    """
    with pytest.raises(KeyError), store_errors():
        raise KeyError("bug")


def _missing() -> None:
    raise NotFoundError("cluster.json")


@pytest.mark.parametrize(
    ("location", "work", "message"),
    [
        ("{}", _missing, "no driftlog bucket at {}: there is no cluster.json"),
        ("ftp://x", lambda: None, "ftp://x"),
    ],
)
def test_a_bucket_that_is_none_is_named(
    tmp_path: Path, location: str, work: Callable[[], None], message: str
) -> None:
    """
    A mistyped location is the most common error.
    """

    async def main() -> None:
        async with open_bucket(location.format(tmp_path)):
            work()

    with pytest.raises(CommandError, match=message.format(tmp_path)), store_errors():
        asyncio.run(main())
