"""Applies the dynamic configs of brokers and groups to a running agent.

    watch of the configs ──▶ which of them hold ──▶ settings ──▶ topics, log, connections
                        └──▶ a group's configs  ──▶ the group, if it is loaded here

Every agent of the cluster does so with the same keys, in the order of their revisions.

Shell.
"""

from collections.abc import Callable

import structlog

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.dynamic_configs import DynamicConfigs, configure, loaded
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_metadata.schema.model import ConfigsOwner


class LiveConfigs:
    """See the module.

    Args:
        log: the settings that the sessions of the agent share.
        limit_connections: called with the new settings of the broker.
    """

    def __init__(
        self,
        broker: Broker,
        log: EngineSettings,
        limit_connections: Callable[[BrokerSettings], None],
    ) -> None:
        self._broker = broker
        self._log_settings = log
        self._limit_connections = limit_connections
        self._log = structlog.get_logger()
        self._faults: tuple[str, ...] = ()

    def changed(self, owner: ConfigsOwner) -> None:
        """The configs of *owner* have changed."""
        broker = self._broker
        if owner.group_id is not None:
            if broker.groups is not None:
                broker.groups.reconfigure(owner.group_id)
        elif owner.node_id in (None, broker.node_id):
            self._apply()

    def _apply(self) -> None:
        broker, view = self._broker, self._broker.view
        own, all_brokers = ConfigsOwner(node_id=broker.node_id), ConfigsOwner()
        found = loaded(
            broker.at_start,
            DynamicConfigs(view.configs.get(own, {}), view.configs.get(all_brokers, {})),
            unreadable=view.has_unreadable_configs(own, all_brokers),
        )
        if found.faults and found.faults != self._faults:
            self._log.error(
                "broker_configs_ignored",
                errors=list(found.faults),
                advice="set them again (driftlog configs alter), or upgrade the agent; while a "
                "config of retention is ignored, topics that inherit it keep all records; while "
                "log.cleanup.policy is not known, topics that inherit it accept records without a "
                "key, which compaction removes later",
            )
        self._faults = found.faults
        if (found.settings, found.dynamic) == (broker.settings, broker.dynamic):
            return
        broker.settings, broker.dynamic = found.settings, found.dynamic
        broker.topics.inherit()
        configure(self._log_settings, found.settings)
        self._limit_connections(found.settings)
        self._log.info(
            "broker_configs_changed",
            of_broker=dict(found.dynamic.of_broker),
            of_all_brokers=dict(found.dynamic.of_all),
        )
