"""The settings of each group: its agent's, with the configs of its own.

Shell.
"""

import structlog

from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.configs.dynamic_configs import group_settings
from driftlog_agents.configs.group_settings import ConsumerSettings, GroupSettings
from driftlog_metadata.schema.model import ConfigsOwner


class GroupConfigs:
    """See the module; reads the configs of groups from the *view* of the cluster."""

    def __init__(self, settings: GroupSettings, view: ClusterView) -> None:
        self.settings = settings
        self._view = view
        self._log = structlog.get_logger()

    def consumer(self, group_id: str) -> ConsumerSettings:
        """The settings of a group of KIP-848 now."""
        configs = self._view.configs.get(ConfigsOwner(group_id=group_id))
        if not configs:
            return self.settings.consumer
        return group_settings(
            self.settings,
            configs,
            lambda error: self._log.error(
                "group_configs_ignored",
                group=group_id,
                error=error,
                advice="the group has the settings of its agent; set its configs again, or upgrade "
                "the agent",
            ),
        )
