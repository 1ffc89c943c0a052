"""One machine of the cluster: its disk, its clock, its ways to the stores, its agent's lives."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftlog_agents.log.local.buffer_format import entries
from driftlog_agents.log.local.leftovers import decode_leftovers
from driftlog_agents.process.composition.cluster_identity import WrongClusterError
from driftlog_metadata.schema.model import TopicPartition
from tests.simulation.agent import SimulatedAgent
from tests.simulation.aimed import aim
from tests.simulation.batches import Row, rows_of
from tests.simulation.bucket_faults import latest_ms
from tests.simulation.clocks import WallClock
from tests.simulation.faults import Cut, Refused, Weather
from tests.simulation.loop import NOBODY
from tests.simulation.sim_disk import Platter

if TYPE_CHECKING:
    from tests.simulation.world import World


class Node:
    """See the module.

    Args:
        number: Kafka's node id, which the disk remembers.
    """

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.platter = Platter()
        self.platter.on_note = self._noted
        self.metadata_weather = Weather()
        self.store_weather = Weather(latency_ms=(5.0, 80.0))
        for weather in (self.metadata_weather, self.store_weather):
            weather.latest_ms = latest_ms(world.seed) or weather.latest_ms
        self.metadata_weather.aim = aim(world.seed, number)
        self.wall_skew_ms = 0.0
        self.wall = WallClock(self)
        self.stays_away_s: tuple[float, ...] = (0.01, 0.5, 3.0, 9.0)
        """How long, one of these, it takes until a process that ended is started again."""
        self.lives = 0
        self.has_threads = False
        """Keep-alives of its next sessions are sent beside the event loop."""
        self.process = self._new_process()
        self.last_life = False
        """It leaves, or has left, and never comes back."""
        self.left = False
        """It did so while the faults went on, with whatever was on its disk."""
        self._ended = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._trap: tuple[str, bool, Callable[[], None]] | None = None

    def _noted(self, data: bytes) -> None:
        """What stands behind what a disk did not write has no place, led elsewhere or not."""
        self.world.unsettled.update(decode_leftovers(data).partitions)

    def _new_process(self) -> SimulatedAgent:
        self.lives += 1
        return SimulatedAgent(self, self.lives)

    async def run(self) -> None:
        """One process after the other, until the last one has ended."""
        while True:
            context = self.process.freezer.context
            work = self.process.run()
            self._life = asyncio.get_running_loop().create_task(work, context=context)
            try:
                await self._life
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self.process.dead or (task is not None and task.cancelling()):
                    raise  # not killed: the simulation itself is over
            except Exception as error:
                beside = self.world.restored
                if beside is not None and beside.ends(error):
                    self.last_life = True  # a start is refused
                elif not self.process.dead and not self._was_away(error):
                    raise
                # A killed process's requests end as if they were cancelled: what comes of it is
                # nobody's (seed 30375).
            self.process.kill()  # what has ended answers nobody
            if not self.last_life:
                await asyncio.sleep(self.world.rng.choice(self.stays_away_s))
            if self.last_life:
                self._ended.set()
                return
            self.process = self._new_process()

    def _was_away(self, error: Exception) -> bool:
        """Whether its agent ended because its machine was suspended for days: it starts again."""
        if "suspended" not in self.world.counts:
            return False
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return isinstance(error, WrongClusterError) and "no session for" in str(error)

    async def leave(self) -> None:
        """SIGTERM, for the last time; returns when it has ended."""
        self.last_life = True
        self.process.stop()
        await self._ended.wait()

    def come_back(self) -> None:
        """After `leave`: on the same disk, for `run` once more."""
        self.last_life = False
        self._ended.clear()
        self.process = self._new_process()

    @property
    def well(self) -> bool:
        """Whether its process runs, or is not to run any more."""
        process = self.process
        if self.last_life:
            return self._ended.is_set()
        return not process.dead and not process.stopping and process.engine is not None

    def kept(self, tp: TopicPartition) -> list[tuple[int, Row]]:
        """What is set aside of a partition on its disk, by the offset that it had."""
        return [
            found
            for files in self.platter.kept.values()
            for number, data in sorted(files.items())
            for entry in entries(data, number)
            if (entry.topic_id, entry.partition) == (tp.topic_id, tp.partition)
            for found in rows_of(entry.batch)
        ]

    @property
    def has_leftovers(self) -> bool:
        """Whether an old session's directory is on its disk, and its agent is there for it.

        One that could not be removed waits for the next start."""
        engine = self.process.engine
        mine = None if engine is None else engine.agent.session_id
        waiting = set(self.process.disk.all_sessions) - self.platter.not_removed - {mine}
        return not self.last_life and bool(waiting)

    # ── What happens to it ──

    def kill(self, how: str) -> None:
        """SIGKILL, or the loss of power."""
        if self._life is None or self._life.done():
            return
        self.world.note(how)
        self.process.kill()
        self._cancel(self._life)
        if how == "power":
            self.platter.lose_power(self.world.rng)
        if how == "disk lost":
            self.platter.lose_everything()
            self.world.disk_is_gone(self)
        if how == "disk back":
            self.platter.swap()
            self.world.disk_is_gone(self)
            self.world.oracle.disk_is_back()

    def _cancel(self, life: asyncio.Task[None]) -> None:
        """Until it has ended: asyncio lets an error that a session ends with win over a cancel."""
        if not life.done():
            life.cancel()
            self.world.loop.call_later(0.01, self._cancel, life, context=NOBODY)

    async def pause(self, seconds: float, *, threads: bool = True) -> None:
        """Time goes on for all others; without *threads*, for its own as well."""
        process = self.process
        if process.dead or process.freezer.frozen or self._life is None or self._life.done():
            return
        self.world.note("paused" if threads else "held up")
        process.freeze(threads=threads)
        await asyncio.sleep(seconds)
        if process.freezer.frozen:
            process.thaw(timers_last=self.world.rng.random() < 0.5)

    def cut(self, peer: str, way: Cut | None) -> None:
        """Let nothing through to *peer* (metadata, bucket, both), or all again."""
        if peer != "bucket":
            self.metadata_weather.cut = way
        if peer != "metadata":
            self.store_weather.cut = way

    def trap(self, pattern: str, act: Callable[[], None], *, early: bool = False) -> None:
        """When the next request of it whose description has *pattern* has acted, or *early*, is
        on its way: *act*."""
        self._trap = pattern, early, act

    def untrap(self, act: Callable[[], None]) -> None:
        """Not any more, if *act* is what waits."""
        if self._trap is not None and self._trap[2] is act:
            self._trap = None

    def sent(self, what: str) -> None:
        """A request of it is on its way."""
        self._spring(what, early=True)

    def acted(self, what: str) -> None:
        """A request of it has just acted, and is not answered yet."""
        self._spring(what, early=False)

    def _spring(self, what: str, *, early: bool) -> None:
        if self._trap is not None and self._trap[1] == early and self._trap[0] in what:
            act = self._trap[2]
            self._trap = None
            act()

    def recover(self) -> None:
        """From now on everything works."""
        for weather in (self.metadata_weather, self.store_weather):
            weather.refused = weather.lost_before = weather.lost_after = weather.late = 0.0
            weather.watch_lag_ms = 0.0
            weather.down = False
            weather.refused_kind = Refused.NOTHING
            weather.cut = None
            weather.aim = None
        self.metadata_weather.latency_ms = (1.0, 10.0)
        self._trap = None
        self.platter.full = False
        disk = self.process.disk
        disk.sync_fails = disk.write_fails = disk.folder_fails = disk.sync_stalls = 0.0
        self.process.thaw()
