"""If it broke, one small Fetch of a log in many pieces would keep the agent from all its clients,
or a consumer of such a log would get empty answers for ever."""

from array import array
from typing import Any

from driftlog_agents.log.partition.local_plan import (
    MOST_BATCHES,
    MOST_FILE_BYTES,
    MOST_FILE_READS,
    MOST_SLICES,
    Allowance,
)
from driftlog_agents.log.partition.local_reads import read_local
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.tail import FlushBatches
from tests.agents.log.partition.test_local_plan import log_of

FAR = 10_000


class ZeroFile:
    """A buffer file that counts its reads."""

    alive = trusted = True

    def __init__(self) -> None:
        self.reads: list[int] = []

    def read(self, _: int, length: int) -> bytes:
        """Zeros."""
        self.reads.append(length)
        return bytes(length)


def in_a_file(lengths: list[int], apart: int = FAR) -> tuple[PartitionLog, ZeroFile]:
    """A flush of batches that stand *apart* bytes from each other in a buffer file."""
    log, file = log_of([lengths]), ZeroFile()
    data = log.slices[0].data
    assert isinstance(data, FlushBatches)
    files: list[Any] = [file]
    data.files, data.views = files, None
    data.file_numbers = array("B", [0] * len(lengths))
    data.file_positions = array("q", [sum(lengths[:n]) + n * apart for n in range(len(lengths))])
    return log, file


def test_an_answer_has_a_limit_of_batches() -> None:
    """
    Bytes do not bound a fetch of small batches, and its partitions count together.
    """
    log, allowance = log_of([[1] * (MOST_BATCHES - 7), [1] * 5]), Allowance()

    found = [read_local(log, 0, 1 << 30, allowance) for _ in range(3)]

    assert [MOST_BATCHES - 2, 2, 0] == [len(batches or ()) for batches in found]
    assert allowance.cut
    assert found[2] is not None, "it is not in the bucket"


def test_an_answer_that_has_everything_is_not_cut() -> None:
    """
    A fetch of few batches may wait for more.
    """
    allowance = Allowance()

    read_local(log_of([[1] * 5]), 0, 1 << 30, allowance)

    assert not allowance.cut


def test_batches_that_stand_far_apart_take_a_limited_number_of_file_reads() -> None:
    """
    The next step, or the client's next request, goes on where it ended.
    """
    log, file = in_a_file([100] * (MOST_FILE_READS + 5))
    allowance = Allowance()

    first = read_local(log, 0, 1 << 30, allowance)
    refused = read_local(log, MOST_FILE_READS, 1 << 30, allowance)
    cut = allowance.cut
    allowance.next_step()
    second = read_local(log, MOST_FILE_READS, 1 << 30, allowance)

    assert (MOST_FILE_READS, 0, 5) == tuple(len(x or ()) for x in (first, refused, second))
    assert cut
    assert refused == []
    assert MOST_FILE_READS + 5 == len(file.reads)


def test_a_step_reads_a_limited_number_of_bytes_from_files() -> None:
    """
    Its last read may go beyond; the first batch is read whatever its size.
    """
    log, file = in_a_file([MOST_FILE_BYTES + 1] + [1 << 20] * 30)

    first = read_local(log, 0, 1 << 30)
    second = read_local(log, 1, 1 << 30)

    assert 1 == len(first or ())
    assert MOST_FILE_BYTES + 1 == file.reads.pop(0)
    assert MOST_FILE_BYTES <= sum(file.reads) < MOST_FILE_BYTES + file.reads[-1]
    assert MOST_FILE_BYTES >> 20 <= len(second or ()) < 30


def test_batches_that_stand_side_by_side_are_read_as_before() -> None:
    """
    A fetch of a partition that is written alone gets all that it asks for.
    """
    log, file = in_a_file([16_384] * 640, apart=48)

    found = read_local(log, 0, 10 << 20)

    assert 640 == len(found or ())
    assert len(file.reads) <= 4


def test_a_step_looks_at_a_limited_number_of_slices() -> None:
    """
    A partition with little traffic has a slice for each batch.
    """
    log = log_of([[1]] * (MOST_SLICES + 5))

    found = [len(read_local(log, offset, 1 << 30) or ()) for offset in (0, MOST_SLICES)]

    assert [MOST_SLICES, 5] == found


def test_what_is_in_the_bucket_only_is_not_a_read_that_has_ended() -> None:
    """
    Else it would be read only when an answer has nothing else.
    """
    log, file = in_a_file([100] * 3)
    file.trusted = False

    assert read_local(log, 0, 1 << 30, Allowance()) is None
