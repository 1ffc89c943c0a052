"""`Admin.configs`.

Shell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from driftlog.admin.admin_link import AdminLink
from driftlog.admin.admin_topics import text


@dataclass(frozen=True, slots=True)
class Config:
    """A config, and where its value comes from."""

    name: str
    value: str | None
    """None if the config has no value, or is sensitive."""
    source: str
    """In Kafka's words, such as ``DEFAULT_CONFIG`` or ``DYNAMIC_TOPIC_CONFIG``."""
    default: bool
    """The value is the default; nothing has set it."""
    read_only: bool
    sensitive: bool


class Configs:
    """`Admin.configs`: the configs of topics and brokers."""

    def __init__(self, link: AdminLink) -> None:
        self._link = link

    def describe_topic(self, name: str) -> dict[str, Config]:
        """All configs of a topic, by name.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        return self._describe(ResourceType.TOPIC, name, f"topic {name!r}")

    def describe_broker(self, node_id: int) -> dict[str, Config]:
        """All configs of a broker, by name.

        Raises:
            RequestError: there is no broker of that node id.
        """
        return self._describe(ResourceType.BROKER, str(node_id), f"broker {node_id}")

    def alter_topic(
        self,
        name: str,
        set: Mapping[str, str | int | bool] | None = None,  # noqa: A002  # Kafka's word
        *,
        delete: Sequence[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change configs of a topic, all or none; those that are not named stay.

        Args:
            set: new values, such as ``{"retention.ms": 86_400_000}``; units are Kafka's.
            delete: names of configs that go back to their defaults.
            append, subtract: to and from lists, such as ``{"cleanup.policy": "compact"}``.
            validate_only: check the change, and do not apply it.

        Raises:
            UnknownTopicError: there is no such topic.
            InvalidConfigError: there is no such config, or it does not take the value.
            ValueError: no config is named.
        """
        operation = AlterConfigOpType
        entries = [_entry(key, text(v), operation.SET) for key, v in (set or {}).items()]
        entries += [_entry(key, None, operation.DELETE) for key in delete]
        entries += [_entry(key, v, operation.APPEND) for key, v in (append or {}).items()]
        entries += [_entry(key, v, operation.SUBTRACT) for key, v in (subtract or {}).items()]
        if not entries:
            raise ValueError("name at least one config to change")
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        self._link.ask(
            f"alter configs of topic {name!r}",
            lambda handle: handle.incremental_alter_configs(
                [resource], validate_only=validate_only, request_timeout=self._link.timeout_s
            ),
        )
        if not validate_only:
            self._link.until_shown(lambda: _shown(self.describe_topic(name), entries))

    def _describe(self, kind: Any, name: str, what: str) -> dict[str, Config]:
        entries: Any = self._link.ask(
            f"describe configs of {what}",
            lambda handle: handle.describe_configs(
                [ConfigResource(kind, name)], request_timeout=self._link.timeout_s
            ),
        )
        return {key: _config(entry) for key, entry in sorted(entries.items())}


def _entry(name: str, value: str | None, operation: Any) -> Any:
    return ConfigEntry(name, value, incremental_operation=operation)


def _config(entry: Any) -> Config:
    return Config(
        entry.name,
        entry.value,
        ConfigSource(entry.source).name,
        entry.is_default,
        entry.is_read_only,
        entry.is_sensitive,
    )


def _shown(configs: Mapping[str, Config], entries: Sequence[Any]) -> bool:
    """Whether *configs* have the values of *entries*."""
    for entry in entries:
        config = configs[entry.name]
        values = set((config.value or "").split(","))
        match entry.incremental_operation:
            case AlterConfigOpType.SET:
                done = config.sensitive or config.value == entry.value
            case AlterConfigOpType.DELETE:
                done = config.source != ConfigSource.DYNAMIC_TOPIC_CONFIG.name
            case AlterConfigOpType.APPEND:
                done = set(entry.value.split(",")) <= values
            case _:
                done = not set(entry.value.split(",")) & values
        if not done:
            return False
    return True
