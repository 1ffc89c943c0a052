"""driftlog: a Kafka log whose disk is a bucket.

    from driftlog import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer

They connect to any Kafka cluster, through librdkafka.  `segment_files` names the Parquet files of a
topic.  `import driftlog` loads nothing: the first use of a name imports its module.
Shell.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from driftlog.admin.admin import Admin as Admin
    from driftlog.bucket.segment_files import SegmentFile as SegmentFile
    from driftlog.bucket.segment_files import segment_files as segment_files
    from driftlog.common.records import Delivered as Delivered
    from driftlog.common.records import Record as Record
    from driftlog.common.records import TopicPartition as TopicPartition
    from driftlog.common.settings import ConsumerSettings as ConsumerSettings
    from driftlog.common.settings import ProducerSettings as ProducerSettings
    from driftlog.consumer.aio_consumer import AsyncConsumer as AsyncConsumer
    from driftlog.consumer.consumer import Consumer as Consumer
    from driftlog.consumer.rebalance import RebalanceCallbacks as RebalanceCallbacks
    from driftlog.errors import DeliveryError as DeliveryError
    from driftlog.errors import DriftlogError as DriftlogError
    from driftlog.producer.aio_producer import AsyncProducer as AsyncProducer
    from driftlog.producer.producer import Producer as Producer

_PLACES: Final = {
    "driftlog.admin.admin": ("Admin",),
    "driftlog.bucket.segment_files": ("SegmentFile", "segment_files"),
    "driftlog.consumer.aio_consumer": ("AsyncConsumer",),
    "driftlog.producer.aio_producer": ("AsyncProducer",),
    "driftlog.consumer.consumer": ("Consumer",),
    "driftlog.consumer.rebalance": ("RebalanceCallbacks",),
    "driftlog.errors": ("DeliveryError", "DriftlogError"),
    "driftlog.producer.producer": ("Producer",),
    "driftlog.common.records": ("Delivered", "Record", "TopicPartition"),
    "driftlog.common.settings": ("ConsumerSettings", "ProducerSettings"),
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
    "RebalanceCallbacks",
    "Record",
    "SegmentFile",
    "TopicPartition",
    "segment_files",
]


def __getattr__(name: str) -> object:
    """Import the module of *name*, and return the object.

    Raises:
        ImportError: it needs a package that is not installed; the message says how to install it.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'driftlog' has no attribute {name!r}")
    try:
        value: object = getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if _MODULES[name].startswith("driftlog.bucket."):
            raise ImportError(
                f"driftlog.{name} needs {error.name}: pip install 'driftlog[agent]' or "
                "pip install 'driftlog[spark]'"
            ) from error
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
