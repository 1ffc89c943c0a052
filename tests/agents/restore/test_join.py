"""A restore joins the batches of one partition wrongly: a later leader's batch is not served."""

from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.restore.evidence import UnsealedObject
from driftlog_agents.restore.join import UnsealedBatches
from tests.agents.restore.bucket_model import TPS, Batch, footer_of


@dataclass(frozen=True, slots=True)
class Leader:
    """A leader epoch: it begins at one offset, and writes batches of these sizes."""

    kept: int
    sizes: tuple[int, ...]


leaders = st.lists(
    st.builds(Leader, st.integers(0, 3), st.lists(st.integers(1, 3), max_size=4).map(tuple)),
    min_size=1,
    max_size=4,
)


@given(leaders, st.randoms(use_true_random=False), st.integers(1, 4))
def test_at_each_offset_the_batch_of_the_highest_epoch_is_joined(
    history: list[Leader], rng: Random, copies: int
) -> None:
    """
    A leader keeps the first batches of those before it and replaces the others; batches lie in
    any objects, some in several, and an object may hold batches of which only some are valid.
    """
    log: list[Batch] = []
    batches: list[Batch] = []
    for epoch, leader in enumerate(history):
        del log[leader.kept :]
        start = log[-1].end if log else 0
        for size in leader.sizes:
            base = log[-1].end if log else start
            log.append(Batch(0, epoch, base, base + size, start))
            batches.append(log[-1])
        # The batches that it keeps are committed: a leader that writes nothing replaces nothing.
        if not leader.sizes:
            batches = [one for one in batches if one.base < start]
    objects: list[UnsealedObject] = []
    for copy in range(copies):
        shuffled = list(batches)
        rng.shuffle(shuffled)
        while shuffled:
            some = shuffled[:3]
            del shuffled[:3]
            footer = footer_of("s", len(objects), some)
            objects.append(UnsealedObject(f"o{len(objects)}", (0, copy), footer))
    rng.shuffle(objects)

    runs = UnsealedBatches(objects).join(TPS[0], 0)

    joined = [
        (columns[3][i], columns[3][i] + columns[4][i] + 1, columns[2][i])
        for run in runs
        for columns in (run.footer.columns,)
        for i in range(run.first, run.first + run.count)
    ]
    assert [(one.base, one.end, one.epoch) for one in log] == joined
    assert [(run.base, run.end) for run in runs] == [
        (run.footer.columns[3][run.first], run.end) for run in runs
    ]


def test_nothing_is_joined_behind_a_gap_or_of_an_older_epoch_than_the_manifests() -> None:
    """
    What is behind a gap was never committed; what is older lost its place.
    """
    objects = [
        UnsealedObject("a", (0, 1), footer_of("s", 1, [Batch(0, 4, 0, 2, 0), Batch(0, 4, 3, 4, 0)]))
    ]

    joined = UnsealedBatches(objects)

    assert [(0, 2)] == [(run.base, run.end) for run in joined.join(TPS[0], 0, 4)]
    assert [] == joined.join(TPS[0], 0, 5)
    assert [] == joined.join(TPS[1], 0)
