"""Mutated frames raise what their target promises, and no other error."""

import pytest

from tests.fuzz.runner import Chunk, run_chunk
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_mutated_frames_break_nothing(target: str, number: int) -> None:
    """
    10,000 mutated frames raise nothing but what the target promises, within a bound of
    memory and time.
    """
    assert run_chunk(Chunk(target, seed=1, number=number)) > 0


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_good_frames_are_good(target: str) -> None:
    """
    What is mutated is accepted as it is: the fuzzer starts from inside.
    """
    for data in TARGETS[target].good():
        TARGETS[target].run(data)
