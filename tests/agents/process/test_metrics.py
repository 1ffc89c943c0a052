"""What an agent counts is in its metrics."""

from pathlib import Path

from driftlog_agents.process.metrics import collect
from tests.agents.network.serving import Serving


async def test_damage_of_buffer_files_is_counted_from_the_start(tmp_path: Path) -> None:
    """
    Files, entries and bytes; 0 before anything is damaged.
    """
    async with Serving(tmp_path) as agent:

        def damage() -> dict[str, float]:
            return {
                sample.name: sample.value
                for metric in collect(agent.observed)
                for sample in metric.samples
                if "buffer_damaged" in sample.name
            }

        names = [f"driftlog_buffer_damaged_{what}_total" for what in ("files", "entries", "bytes")]
        before, counted = damage(), agent.process.counters
        counted.buffer_damaged_files, counted.buffer_damaged_entries = 1, 2
        counted.buffer_damaged_bytes = 300
        after = damage()

    assert dict.fromkeys(names, 0) == before
    assert dict(zip(names, (1, 2, 300), strict=True)) == after
