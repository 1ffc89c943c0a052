"""The agent as a process: options become ports, and ports become a running agent.

Root.
"""

import asyncio
import contextlib
import gc
import logging
import os
import shlex
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

import structlog

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Refusals
from driftlog_agents.foundation.loop_slices import in_turns
from driftlog_agents.foundation.offload import FairThreads, on_threads
from driftlog_agents.foundation.start_retry import patiently
from driftlog_agents.health.directory_monitor import DirectoryMonitor
from driftlog_agents.health.directory_repair import move_back, put_back
from driftlog_agents.health.event_loop_monitor import EventLoopMonitor
from driftlog_agents.health.store_times import StoreTimes
from driftlog_agents.health.timed_objects import TimedObjectStore
from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_agents.log.local.range_cache import RangeCache
from driftlog_agents.log.local.spool import spool_in
from driftlog_agents.log.segments.range_segments import FILLING
from driftlog_agents.log.session.keep_alive import KeepAlive, KeepAliveThread
from driftlog_agents.network.listeners import (
    AddressTakenError,
    ListenAt,
    ListenError,
    http_address,
    parse_address,
    read_listeners,
    refused,
    take,
    take_all,
)
from driftlog_agents.network.server import Server
from driftlog_agents.process.composition.agent import AgentPorts, AgentProcess, now_ms, wall_ms
from driftlog_agents.process.composition.allocator import use_memory_again
from driftlog_agents.process.composition.cluster_identity import ClusterIdentity, look_first
from driftlog_agents.process.http_api import HttpApi
from driftlog_agents.process.metrics.observed import Observed
from driftlog_agents.process.otel_traces import OtelTraces, open_traces
from driftlog_agents.process.segment_client import HttpSegmentTransport
from driftlog_agents.process.startup_configs import (
    HTTP_LISTENER,
    Options,
    StartError,
    agent_settings,
    check_roles,
)
from driftlog_agents.process.thread_priority import SEAL_NICE, UPKEEP_NICE, lower_priority
from driftlog_agents.process_log.escapes import OWN_CHARACTERS, escaped
from driftlog_agents.process_log.process_log import ProcessLog
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import CLUSTER_KEY
from driftlog_metadata.stores.errors import (
    CorruptError,
    DeclinedError,
    OutcomeUnknownError,
    StoreError,
    UnavailableError,
)
from driftlog_metadata.stores.quota import Usage
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_tiering.stores.counted_store import CountedObjectStore
from driftlog_tiering.stores.locations import open_object_store
from driftlog_tiering.stores.object_store import ObjectStore

if TYPE_CHECKING:
    from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
    from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore

_GC_THRESHOLDS: Final = (12_500, 4, 1_000)
"""The log's objects are many, long-lived and without cycles: search for cycles less often, and in
at most 50,000 new objects at once, which takes some 15 ms."""

_SWITCH_S: Final = 0.001
"""A thread that stores a flush needs the interpreter some fifty times, and while the event loop is
busy it waits so long each time.  With Python's 5 ms an acknowledgement took 0.5 s beside a crowd;
with this 0.1 s."""

_POOLS: Final = (
    (FILLING, "seal", SEAL_NICE),
    (2, "groups", 2),
    (1, "produce", 0),
    (1, "rewrite", 0),
    (1, "upkeep", UPKEEP_NICE),
    (1, "large", 0),
)
"""Worker threads of an agent: the number, the name and the lower priority of each pool."""

_READ_THREADS: Final = 2
_READ_NICE: Final = 2

_STOP_S: Final = 28.0
"""From SIGTERM to the forced end: longer than a drain takes, and shorter than the 30 s after which
supervisors kill."""


class DirectoryLostError(Exception):
    """The directory was removed while the agent ran; the message says what to do."""


def run(options: Options) -> int:
    """Run an agent in the foreground until SIGTERM or SIGINT; returns the exit code."""
    log = ProcessLog(options.log_level, options.log_format)
    log.install()
    if options.store is None or _in_bucket(options.store):
        os.umask(0o077)  # (a separate directory of objects may be read by others)
    use_memory_again()
    code = 0
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_S)
    try:
        with _runner() as runner:
            runner.run(_serve(options, log))
    except* (StartError, DirectoryLostError, ListenError, StoreError, CorruptError) as group:
        for error in _leaves(group):
            sys.stderr.write(f"driftlog: {escaped(str(error), OWN_CHARACTERS)}\n")
        code = 1
    except* KeyboardInterrupt:  # before the agent had anything to drain
        code = 130
    return code


def _runner() -> asyncio.Runner:
    try:
        import uvloop  # noqa: PLC0415  # optional: not every platform has it
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _serve(options: Options, log: ProcessLog) -> None:
    listeners = read_listeners(options.listeners, options.advertised_listeners)
    location = options.store or str(options.directory / "objects")
    settings = agent_settings(options, location, in_bucket=_in_bucket(location))
    log.set_lines_per_second(settings.broker.limits.driftlog_log_lines_per_second)
    # Refuse what can be refused, before anything is on the disk or in the bucket.
    bound = await take_all(listeners)
    http_listening = await _take_http(options)
    check_roles(options)
    _check_rescued(options)
    async with contextlib.AsyncExitStack() as stack:
        etcd = await _etcd(options, stack)
        objects = await _looked_at(options, location, stack)
        disk = _disk(options.directory)
        stack.callback(disk.close)
        if etcd is None:
            _check_embedded(options, disk)
        embedded = None if etcd is not None else await _embedded(options, stack)
        metadata = etcd or embedded
        assert metadata is not None
        if objects is None:
            objects = _opened(location, stack)
        pools = [ThreadPoolExecutor(n, name, lower_priority, (by,)) for n, name, by in _POOLS]
        for pool in pools:
            stack.callback(pool.shutdown, cancel_futures=True)
        counted, times = CountedObjectStore(objects), StoreTimes()
        timed = TimedObjectStore(counted, now_ms, times)
        cache = None
        if _in_bucket(location):
            budget_bytes = settings.broker.driftlog_read_cache_bytes
            cache = RangeCache(options.directory / "reads", budget_bytes)
            stack.callback(cache.close)
        refusals = Refusals()
        server = _server(settings.broker, listeners, bound, refusals)
        ports = AgentPorts(
            metadata=metadata,
            objects=timed,
            disk=disk,
            identity=ClusterIdentity(
                objects=timed,
                disk=disk,
                location=location,
                session_ms=options.session_timeout_ms,
                rng=SystemRandom(),
                grace=Grace(options.new_cluster_grace_ms),
            ),
            server=server,
            rng=SystemRandom(),
            secrets=SystemRandom(),
            now_ms=now_ms,
            wall_ms=wall_ms,
            offload_seal=on_threads(pools[0]),
            offload_read=in_turns(
                FairThreads("read", _READ_THREADS, partial(lower_priority, _READ_NICE))
            ),
            offload_groups=on_threads(pools[1]),
            offload_produce=on_threads(pools[2]),
            offload_rewrite=on_threads(pools[3]),
            offload_upkeep=on_threads(pools[4]),
            offload_large=on_threads(pools[5]),
            offload_disk=asyncio.to_thread,
            spool=spool_in(options.directory / "spool"),
            read_cache=cache,
            keep_alive=_keep_alive(options, stack),
            usage=partial(_usage, etcd) if etcd is not None else None,
            refusals=refusals,
            segments=HttpSegmentTransport(),
        )
        http_host, http_port = http_listening[0].getsockname()[:2]
        settings = replace(settings, http_address=http_address(http_host, http_port, listeners))
        if settings.broker.driftlog_traces_enable:
            ports = replace(ports, traces=_traces(settings.http_address, stack))
        agent = AgentProcess(settings, ports)
        loop_watch = EventLoopMonitor()
        http = HttpApi(
            Observed(
                agent=agent,
                server=server,
                loop_watch=loop_watch,
                store_requests=counted.requests,
                store_times=times,
                log_lines_dropped=log.dropped,
            ),
            [at.advertised_host for at in listeners if at.advertised_host],
        )
        await http.start(http_listening)
        stack.push_async_callback(http.stop)
        watching = asyncio.ensure_future(loop_watch.run())
        stack.callback(watching.cancel)
        looks = [disk.removed, *([] if embedded is None else [embedded.removed])]
        deadline = StopDeadline(partial(_end_at_once, log))
        lost = await run_until_stopped(agent, _announce(agent, options, location), deadline, looks)
        if lost is not None:
            deadline.call_off()  # only this process can save the metadata
            farewell = await _farewell(options, lost, embedded, disk)
            deadline.set()
            raise DirectoryLostError(farewell)


def _server(
    settings: BrokerSettings,
    listeners: Sequence[ListenAt],
    bound: Sequence[Sequence[socket.socket]],
    refusals: Refusals,
) -> Server:
    return Server(
        now_ms=now_ms,
        socket_request_max_bytes=settings.socket_request_max_bytes,
        max_connections=settings.max_connections,
        connections_max_idle_ms=settings.connections_max_idle_ms,
        limits=settings.limits,
        refusals=refusals,
        listeners=listeners,
        bound=bound,
    )


async def _take_http(options: Options) -> list[socket.socket]:
    option = "--http-listener"
    host, port = parse_address(options.http_listener or HTTP_LISTENER, option)
    try:
        return await _listened(host, port, option)
    except AddressTakenError:
        if options.http_listener is not None:
            raise
    found = await _listened(host, 0, option)
    structlog.get_logger().info(
        "http_port_taken",
        wanted=HTTP_LISTENER,
        used=f"{host}:{found[0].getsockname()[1]}",
        advice="another process seems to have the port; --http-listener HOST:PORT chooses one",
    )
    return found


async def _listened(host: str, port: int, option: str) -> list[socket.socket]:
    """As `take`, and listen at once: so no other process can."""
    found = await take(host, port, option)
    try:
        for taken in found:
            taken.listen()
    except OSError as error:
        for taken in found:
            taken.close()
        raise refused(error, host, port, option) from error
    return found


async def _etcd(options: Options, stack: contextlib.AsyncExitStack) -> "EtcdMetadataStore | None":
    """The etcd store, which answers; None: the options name none."""
    if options.etcd is None:
        return None
    # Imported only when needed: it takes 10 MiB and 0.1 s.
    from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore  # noqa: PLC0415

    logging.getLogger("grpc").setLevel(logging.WARNING)  # else it logs each call at level debug
    try:
        store = EtcdMetadataStore(_spread(options.etcd))
    except ValueError as error:
        raise StartError(f"--etcd: {error}") from error
    stack.push_async_callback(store.close)
    try:
        await patiently(partial(store.get, CLUSTER_KEY), "etcd")
    except (UnavailableError, OutcomeUnknownError) as error:
        raise StartError(
            f"etcd cannot be used: {error}.  Check --etcd, --etcd-user with "
            f"DRIFTLOG_ETCD_PASSWORD, the certificates and the network; then start again"
        ) from error
    return store


def _spread(settings: "EtcdSettings") -> "EtcdSettings":
    """Shuffle the endpoints: the first that answers is used, so agents spread over the members."""
    endpoints = settings.endpoints
    return replace(settings, endpoints=tuple(SystemRandom().sample(endpoints, len(endpoints))))


def _keep_alive(options: Options, stack: contextlib.AsyncExitStack) -> KeepAlive | None:
    """A thread with its own connection to etcd; None: the embedded store has only one user."""
    if options.etcd is None:
        return None
    from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore  # noqa: PLC0415  # as in `_etcd`

    settings = _spread(options.etcd)
    thread = KeepAliveThread(lambda: EtcdMetadataStore(settings))
    stack.push_async_callback(thread.close)
    return thread


async def _usage(etcd: "EtcdMetadataStore") -> list[Usage]:
    return [
        Usage(
            member=status.endpoint,
            size_bytes=status.db_size_bytes,
            quota_bytes=status.quota_bytes,
            full=any("NOSPACE" in error for error in status.errors),
            revision=status.revision,
        )
        for status in await etcd.each_status()
    ]


def _traces(instance: str, stack: contextlib.AsyncExitStack) -> OtelTraces:
    try:
        traces = open_traces(instance, now_ms, wall_ms)
    except ImportError as error:
        raise StartError(
            f"driftlog.traces.enable needs OpenTelemetry ({error}): pip install 'driftlog[otel]'"
        ) from error
    stack.push_async_callback(asyncio.to_thread, traces.close)
    return traces


def _database(options: Options) -> Path:
    return options.directory / "metadata.db"


def _rescued(options: Options) -> Path:
    """The file with the metadata of a database that was removed while the agent ran."""
    return options.directory / "metadata.db.rescued"


def _check_rescued(options: Options) -> None:
    """Refuse to start when an agent that lost its database has saved the metadata beside it."""
    rescued, database = _rescued(options), _database(options)
    if options.etcd is None and rescued.exists() and not database.exists():
        raise StartError(
            f"{database} is not there, and the last agent on this directory has saved all metadata "
            f"in {rescued}: move it to {database}, with no -wal and -shm beside it "
            f"({put_back(str(database), str(rescued), replaced=False)}), and start the agent again"
        )


def _check_embedded(options: Options, disk: PosixDisk) -> None:
    """Refuse to make metadata in a directory with a node id: its agent used etcd, or lost them."""
    if disk.load("node_id.json") is not None and not _database(options).exists():
        raise StartError(
            f"{options.directory} has a node id, and no metadata.db: start the agent with the "
            "--etcd and the --store that it had before; or restore a lost metadata.db (a backup "
            "loses what was committed after it and not sealed; partitions of which more is "
            "sealed than it knows stay offline); or start another agent, with an empty --dir"
        )


async def _farewell(
    options: Options, lost: str, embedded: SqliteMetadataStore | None, disk: PosixDisk
) -> str:
    """What to do after *lost* was removed; saves the metadata when the database was removed."""
    moved_to = disk.moved_to()
    if moved_to is not None and (embedded is None or embedded.is_whole_in(moved_to)):
        directory = os.path.abspath(options.directory)
        return (
            f"{directory} was moved to {moved_to} while the agent ran, so it has stopped.  What it "
            f"had acknowledged is in {moved_to} and in the objects: move it back "
            f"({move_back(directory, str(moved_to))}) and start the agent again, or start it with "
            f"--dir {shlex.quote(str(moved_to))}"
        )
    said = f"{lost} was removed or replaced while the agent ran, so it has stopped."
    if embedded is None or embedded.removed() is None:
        return f"{said}  What it had acknowledged was uploaded; start it again"
    database = _database(options)
    rescued = _rescued(options)
    try:
        await embedded.save_copy(rescued)
    except (StoreError, OSError, sqlite3.Error) as error:
        return (
            f"{said}  The metadata could not be saved ({error}): what was acknowledged since the "
            f"last backup of {database} is lost"
        )
    return (
        f"{said}  All metadata are saved in {rescued}: move it to {database}, with no -wal and "
        f"-shm beside it ({put_back(str(database), str(rescued), replaced=database.exists())}), "
        f"and start the agent again; nothing that was acknowledged with acks=all is missing as "
        f"long as the objects are there"
    )


async def _embedded(options: Options, stack: contextlib.AsyncExitStack) -> SqliteMetadataStore:
    store = await SqliteMetadataStore.open(_database(options), lambda: time.time_ns() // 1_000_000)
    stack.push_async_callback(store.close)
    return store


def _disk(directory: Path) -> PosixDisk:
    try:
        disk = PosixDisk(directory)
    except UnavailableError as error:
        raise StartError(
            f"{error}.  Give --dir a directory that the agent can create and write"
        ) from error
    if disk.open_to_others:
        structlog.get_logger().warning(
            "directory_not_tightened",
            error=disk.open_to_others,
            advice="other users may read what producers send: chmod 700 -- "
            f"{shlex.quote(str(directory))}",
        )
    elif disk.tightened:
        structlog.get_logger().info(
            "directory_tightened",
            directory=str(directory),
            changed=disk.tightened,
            means="only the agent's user reads its directory; a --store elsewhere is not touched",
        )
    return disk


def _opened(location: str, stack: contextlib.AsyncExitStack) -> ObjectStore:
    folder = None if _in_bucket(location) or Path(location).exists() else Path(location)
    try:
        objects = open_object_store(location)
    except (ValueError, UnavailableError) as error:
        raise StartError(f"--store: {error}") from error
    if folder is not None:
        stack.callback(_remove_if_empty, folder)  # a refused start leaves no folder
    stack.push_async_callback(objects.close)
    return objects


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


async def _looked_at(
    options: Options, location: str, stack: contextlib.AsyncExitStack
) -> ObjectStore | None:
    """The object store, which may be used with DIR; None: it is a part of DIR, which is new."""
    if options.store is None and not Path(location).exists():
        return None
    objects = _opened(location, stack)
    known = options.etcd is not None or _database(options).exists()
    try:
        await look_first(objects, location, has_metadata=known)
    except DeclinedError:
        raise  # its message says what to do
    except (UnavailableError, OutcomeUnknownError) as error:
        raise _no_answer(location, error) from error
    return objects


def _no_answer(location: str, error: Exception) -> StartError:
    return StartError(
        f"the store {location} does not answer: {error}.  Check the endpoint (AWS_ENDPOINT_URL; "
        f"unset for Amazon's), AWS_REGION and the network; then start again"
    )


def _in_bucket(location: str) -> bool:
    return location.startswith(("s3://", "s3a://"))


class StopDeadline:
    """Calls *end* so long after `set`, for a stop that hangs; a repeated `set` does nothing."""

    def __init__(self, end: Callable[[], None], seconds: float = _STOP_S) -> None:
        self._end = end
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def set(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._end)
            self._timer.daemon = True
            self._timer.start()

    def call_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def run_until_stopped(
    agent: AgentProcess,
    announce: Coroutine[Any, Any, None],
    deadline: StopDeadline,
    looks: Sequence[Callable[[], str | None]],
) -> str | None:
    """Serve until a signal, or until one of *looks* finds something removed; returns that."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        agent.stop()
        deadline.set()

    watch = DirectoryMonitor(looks, stop)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(agent.run())
        watching = tasks.create_task(watch.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        announcement = tasks.create_task(announce)
        await asyncio.wait([running])
        announcement.cancel()
        watching.cancel()
    # The timer continues: what follows may hang, too.
    return watch.lost


def _end_at_once(log: ProcessLog) -> None:
    """End a stop that hangs, before a supervisor kills the process: no acknowledged record needs
    the rest of the stop."""
    structlog.get_logger().error(
        "stop_overdue",
        seconds=_STOP_S,
        advice="the process ends now, as if it were killed; please report what it waits for, below",
    )
    log.say_stacks()
    log.close()
    os._exit(1)


async def _announce(agent: AgentProcess, options: Options, location: str) -> None:
    await agent.ready.wait()
    others = "".join(f", {at.name}://{at.host}:{at.port}" for at in agent.listeners[1:])
    options.banner(
        f"driftlog is ready: bootstrap {agent.address}{others}, http "
        f"{agent.settings.http_address}, objects in {location}"
    )


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
