"""driftlog: a Kafka log whose disk is a bucket.

    from driftlog import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer

They speak to any Kafka cluster, through librdkafka.  `import driftlog` loads nothing: each name
brings its module when it is first used.
Shell.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from driftlog.admin import Admin as Admin
    from driftlog.aio_consumer import AsyncConsumer as AsyncConsumer
    from driftlog.aio_producer import AsyncProducer as AsyncProducer
    from driftlog.consumer import Consumer as Consumer
    from driftlog.errors import DeliveryError as DeliveryError
    from driftlog.errors import DriftlogError as DriftlogError
    from driftlog.producer import Producer as Producer
    from driftlog.records import Delivered as Delivered
    from driftlog.records import Record as Record
    from driftlog.records import TopicPartition as TopicPartition
    from driftlog.settings import ConsumerSettings as ConsumerSettings
    from driftlog.settings import ProducerSettings as ProducerSettings

_PLACES: Final = {
    "driftlog.admin": ("Admin",),
    "driftlog.aio_consumer": ("AsyncConsumer",),
    "driftlog.aio_producer": ("AsyncProducer",),
    "driftlog.consumer": ("Consumer",),
    "driftlog.errors": ("DeliveryError", "DriftlogError"),
    "driftlog.producer": ("Producer",),
    "driftlog.records": ("Delivered", "Record", "TopicPartition"),
    "driftlog.settings": ("ConsumerSettings", "ProducerSettings"),
}
_MODULES: Final = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "Admin",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "ConsumerSettings",
    "Delivered",
    "DeliveryError",
    "DriftlogError",
    "Producer",
    "ProducerSettings",
    "Record",
    "TopicPartition",
]


def __getattr__(name: str) -> object:
    """Load what *name* is in.

    Raises:
        ImportError: it needs confluent-kafka, which is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'driftlog' has no attribute {name!r}")
    try:
        value: object = getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "confluent_kafka":
            raise
        raise ImportError(
            f"driftlog.{name} needs confluent-kafka: pip install driftlog, or "
            "pip install 'confluent-kafka>=2.6,<3'"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
