"""Opens the tail that a query's options ask for: `open_tail`.

    includeTail             true: the query adds the tail; without it there is none
    etcd                    http://HOST:2379[,…]: members of the etcd with the metadata
    etcd.cacert .cert .key  PEM files, for https, as etcdctl has them
    etcd.user .password     where etcd has users; the password may be in DRIFTLOG_ETCD_PASSWORD
    kafka.bootstrap.servers addresses of agents, where etcd is not given
    kafka.*                 Kafka's client properties (`kafka_properties`)
    kafkaConsumer.pollTimeoutMs   how long an executor waits for the next record
    failOnDataLoss          false: records that are deleted while the query runs are left out, and
                            from etcd those that cannot be decoded

They are named as in Spark's Kafka source, where that has them.  Case does not matter.

etcd is reached with grpcio and protobuf, which the extra ``spark`` does not install: most clusters
of Spark have versions of their own, and other readers do without.  Only the driver needs them.

A query without a tail imports neither kind: see `source/data_source`.

Root.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from driftlog_metadata.stores.store import MetadataStore
from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.tail.kafka_properties import librdkafka_properties
from driftlog_spark_reader.tail.port import Tail

_PASSWORD: Final = "DRIFTLOG_ETCD_PASSWORD"  # the variable's name, as the `driftlog` command has it
_SERVERS: Final = "kafka.bootstrap.servers"
_TIMEOUT: Final = "kafkaconsumer.polltimeoutms"
_ETCD_FILES: Final = ("etcd.cacert", "etcd.cert", "etcd.key")


def open_tail(options: Mapping[str, str], location: Files | str) -> Tail | None:
    """The tail that *options* ask for; None without ``includeTail``.

    Args:
        location: where the agents store their objects, or files that are open there, which the
            tail closes.

    Raises:
        ValueError: an option is wrong, or one is missing.
        StorageError: there is no such location.
    """
    given = {name.lower(): value for name, value in options.items()}
    if not _flag(given, "includeTail", default=False):
        return None
    fail_on_data_loss = _flag(given, "failOnDataLoss", default=True)
    if "etcd" in given:
        from driftlog_spark_reader.tail.flush_tail import FlushTail  # noqa: PLC0415

        open_store = _etcd(given)
        files = open_files(location) if isinstance(location, str) else location
        return FlushTail(files, open_store, fail_on_data_loss=fail_on_data_loss)
    if any(name.startswith("etcd.") for name in given):
        raise ValueError("options etcd.… without option etcd: where is it?")
    if _SERVERS not in given:
        raise ValueError(
            "includeTail needs kafka.bootstrap.servers, the address of agents, or etcd, the "
            "address of the cluster's etcd"
        )
    from driftlog_spark_reader.tail.agents_tail import AgentsSettings, AgentsTail  # noqa: PLC0415

    return AgentsTail(
        AgentsSettings(
            librdkafka_properties(given),
            timeout_s=_timeout_ms(given) / 1000,
            fail_on_data_loss=fail_on_data_loss,
        )
    )


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = given.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise ValueError(f"option {name} is {value!r}; it can be true or false")
    return value == "true"


def _timeout_ms(given: Mapping[str, str]) -> int:
    value = given.get(_TIMEOUT, "120000")
    if not value.strip().isdecimal() or not int(value):
        raise ValueError(f"option kafkaConsumer.pollTimeoutMs is {value!r}, not milliseconds")
    return int(value)


def _etcd(given: Mapping[str, str]) -> Callable[[], MetadataStore]:
    try:  # See the module.
        from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings  # noqa: PLC0415
        from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            f"option etcd needs grpcio and protobuf on the driver, and one is missing ({error}): "
            "pip install 'grpcio>=1.66,<2' 'protobuf>=4.25,<8', or read the tail from agents with "
            "kafka.bootstrap.servers"
        ) from error
    ca, certificate, key = (Path(given[name]) if name in given else None for name in _ETCD_FILES)
    settings = EtcdSettings(
        endpoints=tuple(url.strip() for url in given["etcd"].split(",")),
        ca_file=ca,
        certificate_file=certificate,
        key_file=key,
        user=given.get("etcd.user"),
        password=given.get("etcd.password", os.environ.get(_PASSWORD, "")),
    )
    return lambda: EtcdMetadataStore(settings)
