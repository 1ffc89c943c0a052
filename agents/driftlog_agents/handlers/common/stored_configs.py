"""Changes the stored configs of brokers and groups.

    read the key ──▶ change, check, wait ──▶ put it, if it is as it was read ──▶ seen ──▶ answered
         ▲                                        │                            here
         └───────── changed meanwhile ────────────┘

1. A put compares the key and the session: a late copy of it fails after the session's end.
2. A lost answer is asked for again (`Session.transact`); the second attempt finds the change made.
3. Other agents follow their watches, as Kafka's brokers follow the log of the metadata.
4. A damaged key is not replaced by what a change sets: its retention would be lost, and records
   with it.  A change that only deletes configs deletes the key.

Shell.
"""

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from driftlog_agents.groups.sizes import group_id_fault
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.log.log_session import Engine
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.budget import Growth
from driftlog_metadata.schema.codec import decode_at, decode_configs, encode_configs
from driftlog_metadata.schema.keys import configs_key, session_key
from driftlog_metadata.schema.model import CONFIGS_LEVEL, ConfigsOwner
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnsupportedFormatError
from driftlog_metadata.stores.store import (
    CreateRevisionIs,
    Delete,
    Get,
    KeyValue,
    ModRevisionIs,
    Put,
)
from driftlog_metadata.transactions.session_transactions import Txn

_SEEN_S: Final = 5.0
"""How long an answer waits until this agent has seen the change by its watch.  Longer: a client
waits longer for a stalled watch; shorter: it may read the old configs back."""

MAX_GROUPS: Final = "driftlog.max.groups"


async def change_configs(
    broker: Broker,
    owner: ConfigsOwner,
    change: Callable[[Mapping[str, str]], Mapping[str, str]],
    *,
    validate_only: bool,
) -> None:
    """Replace the configs of *owner* by the result of *change*, which may be called again.

    Raises:
        RefusedError: from *change*; NOT_CONTROLLER: the agent has no session; UNSUPPORTED_VERSION:
            the cluster's format level is too low; INVALID_REQUEST: the group's id is too long;
            POLICY_VIOLATION: too many groups have configs, or configs may not grow.
    """
    level = broker.format_level
    if level < CONFIGS_LEVEL:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Configs of brokers and groups need format level {CONFIGS_LEVEL} of the cluster, "
            f"which has {level}: driftlog cluster upgrade --finalize raises it",
        )
    engine = broker.engine
    if engine is None or not engine.ready.is_set():
        raise RefusedError(ErrorCode.NOT_CONTROLLER, "the agent has no session; try again")
    try:
        revision = await _changed(broker, engine, owner, change, validate_only=validate_only)
    except FencedError as error:
        raise RefusedError(ErrorCode.NOT_CONTROLLER, str(error)) from error
    view = broker.view
    if revision is None:
        await broker.cluster.until(lambda: owner not in view.configs, _SEEN_S)
    else:
        await broker.cluster.until(lambda: view.configs_revision >= revision, _SEEN_S)


async def _changed(
    broker: Broker,
    engine: Engine,
    owner: ConfigsOwner,
    change: Callable[[Mapping[str, str]], Mapping[str, str]],
    *,
    validate_only: bool,
) -> int | None:
    """The revision of the key as it is to be, perhaps by a lost answer; 0: no matter, nothing is
    changed; None: the key is not there."""
    key, session = configs_key(owner), session_key(engine.session.session_id)
    kv = await engine.session.read(key)
    while True:
        configs = _configs(kv)
        now = {} if configs is None else configs
        after = dict(change(now))
        if configs is None and after:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"{key} is damaged, and its configs are not known: restore the key, or delete a "
                "config first, which deletes all configs of the key",
            )
        if after and owner.group_id is not None and kv is None:
            _check_groups(broker, owner.group_id)
        growth = _growth(key, kv, after)
        broker.topics.budget.check(engine.ports.quota, growth)
        if validate_only:
            return 0
        if kv is None and not after:
            return None
        if kv is not None and _same(kv, after):
            return kv.mod_revision
        await broker.topics.budget.admit(engine.ports.quota, growth)
        result = await engine.session.transact(
            Txn(
                compares=(
                    ModRevisionIs(key, 0 if kv is None else kv.mod_revision),
                    CreateRevisionIs(session, engine.session.revision),
                ),
                then=(Put(key, encode_configs(after)) if after else Delete(key),),
                otherwise=(Get(key), Get(session)),
            )
        )
        if result.succeeded:
            if configs is None:
                structlog.get_logger().warning("damaged_configs_deleted", key=key)
            return result.revision
        there, sessions = result.reads
        if not sessions or sessions[0].create_revision != engine.session.revision:
            raise FencedError("the session ended before the configs were changed")
        kv = there[0] if there else None


def _configs(kv: KeyValue | None) -> dict[str, str] | None:
    """The configs of a key; None: it is damaged."""
    if kv is None:
        return {}
    try:
        return decode_at(kv.key, kv.value, decode_configs)
    except UnsupportedFormatError as error:
        raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
    except CorruptError:
        return None


def _same(kv: KeyValue, configs: Mapping[str, str]) -> bool:
    return bool(configs) and kv.value == encode_configs(configs)


def _growth(key: str, kv: KeyValue | None, configs: Mapping[str, str]) -> Growth:
    """The growth by a put of *configs*.  A group's name counts: the key has up to three bytes for
    each of its bytes."""
    if not configs:
        return Growth(written_bytes=0 if kv is None else len(key), smaller=True)
    size_bytes = len(key) + len(encode_configs(configs))
    if kv is None:
        return Growth(stored_bytes=size_bytes, written_bytes=size_bytes)
    if _same(kv, configs):
        return Growth()
    more_bytes = size_bytes - len(key) - len(kv.value)
    return Growth(stored_bytes=max(more_bytes, 0), written_bytes=size_bytes, smaller=more_bytes < 0)


def _check_groups(broker: Broker, group_id: str) -> None:
    """Check that another group may have configs of its own."""
    fault = group_id_fault(group_id)
    if fault is not None:
        raise RefusedError(ErrorCode.INVALID_REQUEST, fault)
    most = broker.settings.limits.driftlog_max_groups
    if broker.view.configured_groups >= most:
        broker.refusals.count(MAX_GROUPS)
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION, f"{most} groups have configs, which is {MAX_GROUPS}"
        )
