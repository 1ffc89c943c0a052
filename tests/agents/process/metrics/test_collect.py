"""What an agent counts is in its metrics, from the start of the process on."""

import asyncio
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from time import time

from driftlog_agents.log.local.leftovers import Leftovers
from driftlog_agents.process.metrics.collect import Scrapes, collect
from driftlog_metadata.schema.keys import TOPICS_PREFIX
from tests.agents.network.serving import Serving
from tools import metrics_page


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


async def test_bytes_of_topics_and_configs_are_told(tmp_path: Path) -> None:
    """
    Before driftlog.max.configs.bytes refuses the next topic.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:

        def told() -> float:
            (metric,) = [m for m in collect(agent.observed) if m.name == "driftlog_configs_bytes"]
            return metric.samples[0].value

        before = told()
        await client.create("t", 1)
        after = told()
        (kv,) = (await agent.metadata_store.get_prefix(TOPICS_PREFIX))[1]

    assert (0, len(kv.key) + len(kv.value)) == (before, after)


async def test_scrapes_at_the_same_time_share_one(tmp_path: Path) -> None:
    """
    Otherwise each of some Prometheus servers costs an agent of many partitions a second of CPU.
    """
    made = 0

    def counted() -> dict[str, int]:
        nonlocal made
        made += 1
        return {}

    async with Serving(tmp_path) as agent:
        scrapes = Scrapes(replace(agent.observed, log_lines_dropped=counted))
        texts = await asyncio.gather(*(scrapes.text() for _ in range(5)))
        together = made
        later = await scrapes.text()

    assert (1, 2) == (together, made)
    assert {texts[0]} == set(texts)
    assert b"driftlog_uptime_seconds" in later


async def test_the_page_of_metrics_has_all_that_an_agent_exports(tmp_path: Path) -> None:
    """
    With its text and labels; what only etcd has is the rest.
    """
    async with Serving(tmp_path) as agent:
        exported = {(each.name, each.documentation) for each in collect(agent.observed)}

    suffixes = ("_total", "_info")
    page = {(_without(each.name, suffixes), each.text) for each in metrics_page.described()}
    assert set() == exported - page
    assert {"driftlog_etcd"} == {name[:13] for name, _ in page - exported}


def _without(name: str, suffixes: tuple[str, ...]) -> str:
    for suffix in suffixes:
        name = name.removesuffix(suffix)
    return name


async def test_the_process_is_shown_under_the_names_that_prometheus_has(tmp_path: Path) -> None:
    """
    Dashboards and alerts for any process, such as one on `process_open_fds`, find this one.
    """
    async with Serving(tmp_path) as agent:
        found = {
            sample.name: (sample.value, sample.labels)
            for metric in collect(agent.observed)
            for sample in metric.samples
        }

    labels = found["driftlog_build_info"][1]
    assert {"version": version("driftlog"), "python": python_version()} == labels
    assert 1 == found["driftlog_build_info"][0]
    assert 0 < found["process_cpu_seconds_total"][0]
    assert abs(found["process_start_time_seconds"][0] - time()) < 600
    assert 10 << 20 < found["process_resident_memory_bytes"][0]
    # Two figures of the kernel, which counts pages of threads a little later.
    peak = found["process_max_resident_memory_bytes"][0] + (16 << 20)
    assert found["process_resident_memory_bytes"][0] <= peak
    assert 3 < found["process_open_fds"][0] < found["process_max_fds"][0]


async def test_what_is_set_aside_is_shown_until_it_is_replayed(tmp_path: Path) -> None:
    """
    Records and bytes are counted; the gauge goes back when the directory is gone, without a start.
    """
    async with Serving(tmp_path) as agent:

        def shown() -> list[float]:
            return [
                sample.value
                for metric in collect(agent.observed)
                for sample in metric.samples
                if "set_aside" in sample.name and not sample.name.endswith("_created")
            ]

        before, counted = shown(), agent.process.counters
        counted.buffer_set_aside_records, counted.buffer_set_aside_bytes = 3, 400
        assert agent.process.broker.engine is not None
        disk = agent.process.broker.engine.ports.disk
        session_id = "0" * 32
        await disk.create_kept(session_id)
        path = Path(await disk.finish_kept(session_id, Leftovers(session_id, 1).encode()))
        during = shown()
        (path / "leftovers.json").unlink()
        path.rmdir()

        assert [0, 0, 0] == before
        assert [3, 400, 1] == during
        assert [3, 400, 0] == shown()
