"""The agent as a process: options to ports to a running agent.

Root.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import structlog

from driftlog_agents.agent import AgentProcess, AgentSettings, World
from driftlog_agents.allocator import use_memory_again
from driftlog_agents.broker import BrokerSettings
from driftlog_agents.http_api import HttpApi
from driftlog_agents.log.engine import EngineSettings
from driftlog_agents.log.flush import FlushSettings
from driftlog_agents.log.posix_disk import PosixDisk
from driftlog_agents.log.seal_policy import SealSettings
from driftlog_agents.spool import spool_in
from driftlog_metadata.errors import CorruptError, StoreError
from driftlog_metadata.model import Listener
from driftlog_metadata.sqlite_store import SqliteMetadataStore
from driftlog_tiering.locations import open_object_store

DEV_SEAL_MS: Final = 60_000
"""`driftlog dev` seals what is a minute old, so that a first Spark read is not empty."""

_GC_THRESHOLDS: Final = (50_000, 20, 50)
"""The log's objects are many, long-lived and without cycles: look for cycles less often."""

_DIRECTORY_FLUSHES_PER_SECOND: Final = 200
"""A directory has no price per PUT: a lockstep producer is not held to 20 answers a second."""

_DIRECTORY_UPLOADS: Final = 2
"""Each copies what it writes into a buffer of its own (`file_writes`): more of them only take the
cores from the event loop."""


class StartError(Exception):
    """The agent cannot start; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of the command line."""

    directory: Path
    store: str | None = None
    listener: str = "127.0.0.1:9092"
    advertised_listener: str | None = None
    http_listener: str = "127.0.0.1:0"
    rack: str | None = None
    seal_ms: float | None = None
    log_level: str = "info"
    banner: Callable[[str], None] = print


def run(options: Options) -> int:
    """Run an agent in the foreground until SIGTERM or SIGINT; returns the exit code."""
    _configure_log(options.log_level)
    use_memory_again()
    code = 0
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        with _runner() as runner:
            runner.run(_serve(options))
    except* (StartError, StoreError, CorruptError) as group:
        for error in _leaves(group):
            sys.stderr.write(f"driftlog: {error}\n")
        code = 1
    return code


def _runner() -> asyncio.Runner:
    try:
        import uvloop  # noqa: PLC0415  # an extra of the platforms that have it
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _serve(options: Options) -> None:
    host, port = parse_address(options.listener, "--listener")
    http_host, http_port = parse_address(options.http_listener, "--http-listener")
    location = options.store or str(options.directory / "objects")
    async with contextlib.AsyncExitStack() as stack:
        disk = PosixDisk(options.directory)
        stack.callback(disk.close)
        metadata = await SqliteMetadataStore.open(
            options.directory / "metadata.db", lambda: time.time_ns() // 1_000_000
        )
        stack.push_async_callback(metadata.close)
        try:
            objects = open_object_store(location)
        except ValueError as error:
            raise StartError(f"--store: {error}") from error
        stack.push_async_callback(objects.close)
        pools = [
            ThreadPoolExecutor(n, name) for n, name in ((1, "seal"), (2, "read"), (1, "produce"))
        ]
        for pool in pools:
            stack.callback(pool.shutdown, cancel_futures=True)
        settings = _settings(options, host, port, location)
        world = World(
            metadata=metadata,
            objects=objects,
            disk=disk,
            rng=SystemRandom(),
            offload_seal=_offload(pools[0]),
            offload_read=_offload(pools[1]),
            offload_produce=_offload(pools[2]),
            spool=spool_in(options.directory / "spool"),
        )
        agent = AgentProcess(settings, world)
        http = HttpApi(agent)
        try:
            http_port = await http.start(http_host, http_port)
        except OSError as error:
            raise StartError(
                f"--http-listener {options.http_listener}: {error.strerror}"
            ) from error
        stack.push_async_callback(http.stop)
        agent.settings = replace(settings, http_address=f"{http_host}:{http_port}")
        await _run(agent, options, location)


async def _run(agent: AgentProcess, options: Options, location: str) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(_running(agent, options))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, agent.stop)
        announce = tasks.create_task(_announce(agent, options, location))
        await asyncio.wait([running])
        announce.cancel()


async def _running(agent: AgentProcess, options: Options) -> None:
    try:
        await agent.run()
    except OSError as error:
        raise StartError(
            f"cannot listen on {options.listener}: {error.strerror or error}.  Is another agent "
            f"or broker there?  Choose another with --listener"
        ) from error


async def _announce(agent: AgentProcess, options: Options, location: str) -> None:
    await agent.ready.wait()
    options.banner(
        f"driftlog is ready: bootstrap {agent.address}, http {agent.settings.http_address}, "
        f"objects in {location}"
    )


def _settings(options: Options, host: str, port: int, location: str) -> AgentSettings:
    advertised = None
    if options.advertised_listener is not None:
        name, number = parse_address(options.advertised_listener, "--advertised-listener")
        advertised = Listener("PLAINTEXT", name, number)
    on_disk = not location.startswith(("s3://", "s3a://"))
    flush = FlushSettings()
    if on_disk:
        flush = replace(
            flush,
            flushes_per_second=_DIRECTORY_FLUSHES_PER_SECOND,
            burst=_DIRECTORY_FLUSHES_PER_SECOND / 4,
            max_uploads=_DIRECTORY_UPLOADS,
        )
    seal = SealSettings()
    if options.seal_ms is not None:
        seal = replace(seal, segment_ms=options.seal_ms, small_ms=options.seal_ms)
    return AgentSettings(
        host=host,
        port=port,
        advertised=advertised,
        rack=options.rack,
        broker=BrokerSettings(location=location, seal_ms=options.seal_ms),
        engine=EngineSettings(flush=flush, seal=seal),
    )


def parse_address(text: str, option: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``NAME://HOST:PORT``; brackets around IPv6.

    Raises:
        StartError: not such an address.
    """
    host, _, port = text.rpartition("://")[2].rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise StartError(f"{option} {text!r} is not HOST:PORT, for example 127.0.0.1:9092")
    return host.strip("[]") or "127.0.0.1", int(port)


def _offload(pool: ThreadPoolExecutor) -> Callable[..., Any]:
    async def offload(fn: Callable[..., Any], *args: Any) -> Any:
        future = asyncio.get_running_loop().run_in_executor(pool, fn, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The thread goes on with its arguments: nobody may close them under it.
            await asyncio.wait([future])
            raise

    return offload


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _configure_log(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            getattr(logging, level.upper(), logging.INFO)
        ),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
