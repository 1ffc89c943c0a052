"""A spool's file is used again, unless a read of it is still under way."""

import errno
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import pytest

from driftlog_agents.log.local.spool import spool_in

FULL = Path("/dev/full")
"""A disk that takes nothing; Linux's."""


def test_each_spool_begins_empty_and_ends_where_it_was_written(tmp_path: Path) -> None:
    """
    A long segment, then a short one, then an empty one: nothing of an earlier one shows.
    """
    spool = spool_in(tmp_path / "spool")
    for data in (os.urandom(3_000_000), os.urandom(70_001), b"", os.urandom(1)):
        with spool() as made:
            made.file.write(data[:1000])
            made.file.write(data[1000:])
            assert data == b"".join(made.body())
    assert [] == list((tmp_path / "spool").iterdir())


def test_the_pages_are_used_again(tmp_path: Path) -> None:
    """
    One after the other shares a file; two at once do not.
    """
    spool = spool_in(tmp_path)
    with spool() as first:
        used = os.fstat(first.file.fileno()).st_ino
    with spool() as second, spool() as third:
        assert used == os.fstat(second.file.fileno()).st_ino
        assert used != os.fstat(third.file.fileno()).st_ino


def test_what_a_request_still_reads_is_not_written_over(tmp_path: Path) -> None:
    """
    An upload that was given up keeps its bytes: its file is not used again.
    """
    spool = spool_in(tmp_path)
    with spool() as made:
        made.file.write(b"old" * 10_000)
        body = made.body()[0][:]
    with spool() as made:
        made.file.write(b"new" * 10_000)
        made.file.flush()

    assert b"old" * 10_000 == bytes(body)


def test_a_spool_that_failed_leaves_no_trace(tmp_path: Path) -> None:
    """
    Half a segment is no part of the next.
    """
    spool = spool_in(tmp_path)
    with pytest.raises(ValueError, match="closed"), spool() as made:  # noqa: PT012
        made.file.write(b"half")
        raise ValueError("closed in the middle")
    with spool() as made:
        made.file.write(b"whole")
        assert b"whole" == b"".join(made.body())


def test_a_body_is_mapped_as_long_as_it_is_looked_at(tmp_path: Path) -> None:
    """
    In pieces, over and over, from the end too; and not at all once the file may be another's.
    """
    data = os.urandom(9_000_000)
    spool = spool_in(tmp_path)
    with spool() as made:
        made.file.write(data)
        body = made.body()
        assert 3 == len(body)
        assert data == b"".join(body)
        assert data == b"".join(body[:])
        assert data[8 * 1024 * 1024 :] == body[-1]
        with pytest.raises(IndexError):
            body[3]
        used = os.fstat(made.file.fileno()).st_ino
    with pytest.raises(ValueError, match="let go"):
        body[0]
    with spool() as made:
        assert used == os.fstat(made.file.fileno()).st_ino


def test_a_file_that_the_disk_refused_is_not_used_again(tmp_path: Path) -> None:
    """
    A disk that is full gets its space back; and nothing that was still to be written is.
    """
    spool = spool_in(tmp_path)
    with pytest.raises(OSError, match="full"), spool() as made:  # noqa: PT012
        refused = made.file
        raise OSError(errno.ENOSPC, "the disk is full")
    assert refused.closed
    with spool() as made:
        assert refused is not made.file


@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
def test_what_a_full_disk_does_not_take_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The next segment is written as soon as there is room, though a little of the last still waited.
    """
    make = tempfile.TemporaryFile
    full: list[IO[bytes]] = []

    def on_full_disk(**_: Any) -> IO[bytes]:
        full.append(FULL.open("r+b"))
        return full[-1]

    spool = spool_in(tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryFile", on_full_disk)
    with spool() as made:
        made.file.write(b"buffered")
    monkeypatch.setattr(tempfile, "TemporaryFile", make)
    with spool() as made:
        made.file.write(b"whole")
        assert b"whole" == b"".join(made.body())
    assert full[0].closed
