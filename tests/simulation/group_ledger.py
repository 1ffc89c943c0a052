"""What a consumer group was told, and told its members, and what must hold of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from driftlog_metadata.schema.model import TopicPartition


@dataclass(slots=True)
class Commit:
    """One try to commit *offset*; *end_s* is None while nobody knows what came of it."""

    offset: int
    start_s: float
    end_s: float | None = None
    fenced: bool = False


@dataclass(slots=True)
class GroupLedger:
    """What one group was told, and told us."""

    name: str
    expect: Callable[[bool, str], None]
    commits: dict[TopicPartition, dict[int, Commit]] = field(default_factory=dict)
    plans: dict[int, str] = field(default_factory=dict)
    """The leader's plan of each generation that somebody was told an assignment of."""
    told: list[tuple[float, int]] = field(default_factory=list)
    """When which generation was told; both ascend."""
    reads: int = 0

    def begin(self, tp: TopicPartition, offset: int, now_s: float) -> Commit:
        """Somebody is about to commit."""
        commit = Commit(offset, now_s)
        self.commits.setdefault(tp, {})[offset] = commit
        return commit

    def acknowledged(self, commit: Commit, generation: int, now_s: float) -> None:
        """It is stored."""
        commit.end_s = now_s
        newer = [g for at, g in self.told if at < commit.start_s and g > generation >= 0]
        self.expect(
            not newer, f"{self.name}: generation {generation} commits, {newer} were told before"
        )

    def read(self, tp: TopicPartition, offset: int, start_s: float) -> None:
        """An answer that was asked for at *start_s* says that *offset* is committed (−1: none)."""
        self.reads += 1
        all_of_it = self.commits.get(tp, {})
        found = all_of_it.get(offset)
        self.expect(found is not None or offset == -1, f"{self.name}: {offset} of {tp} is nobody's")
        if found is not None:
            self.expect(not found.fenced, f"{self.name}: {offset} of {tp} was fenced, and is read")
        since = float("-inf") if found is None else found.end_s
        if since is None:
            return  # it may have been stored at any time since
        lost = [
            c.offset
            for c in all_of_it.values()
            if c.end_s is not None and c.start_s > since and c.end_s < start_s
        ]
        self.expect(not lost, f"{self.name}: {offset} of {tp} is read, {lost} were committed since")

    def assigned(self, generation: int, plan: str, now_s: float) -> None:
        """A member of *generation* is told its part of *plan*."""
        there = self.plans.setdefault(generation, plan)
        self.expect(
            there == plan, f"{self.name}: generation {generation} has the plans {there} and {plan}"
        )
        if not self.told or generation > self.told[-1][1]:
            self.told.append((now_s, generation))

    def starts(self, generation: int, start_s: float) -> None:
        """A join that was sent at *start_s* was answered with *generation*, by the coordinator."""
        before = [g for at, g in self.told if at < start_s]
        self.expect(
            not before or generation >= before[-1],
            f"{self.name}: generation {generation} after {before[-1:]} was told",
        )
