"""Metadata (key 3): brokers, and the leaders of partitions.

| version | change |
|---|---|
| 0 | an empty list asks for all topics; from 1 on null does, and an empty list asks for none |
| 4 | may forbid the creation of topics |
| 8–10 | authorized operations on request; those of the cluster only here |
| 9 | flexible |
| 10, 12 | topic ids; topics may be asked for by id |
| 13 | an error for the whole answer (KIP-1102) |

Source: MetadataRequest.json, MetadataResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import NULL_UUID, Bool, Int16, Int32, String, Uuid, V


@dataclass(slots=True, kw_only=True)
class MetadataRequestTopic:
    topic_id: Annotated[Uuid, V("10+")] = NULL_UUID
    name: Annotated[String | None, V(nullable="10+")] = ""


@dataclass(slots=True, kw_only=True)
class MetadataRequest:
    topics: Annotated[list[MetadataRequestTopic] | None, V(nullable="1+")] = field(
        default_factory=list
    )
    allow_auto_topic_creation: Annotated[Bool, V("4+")] = True
    include_cluster_authorized_operations: Annotated[Bool, V("8-10")] = False
    include_topic_authorized_operations: Annotated[Bool, V("8+")] = False


@dataclass(slots=True, kw_only=True)
class MetadataResponseBroker:
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, V("1+")] = None


@dataclass(slots=True, kw_only=True)
class MetadataResponsePartition:
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, V("7+")] = -1
    replica_nodes: list[Int32] = field(default_factory=list)
    isr_nodes: list[Int32] = field(default_factory=list)
    offline_replicas: Annotated[list[Int32], V("5+")] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class MetadataResponseTopic:
    error_code: Int16 = 0
    name: Annotated[String | None, V(nullable="12+")] = ""
    topic_id: Annotated[Uuid, V("10+")] = NULL_UUID
    is_internal: Annotated[Bool, V("1+")] = False
    partitions: list[MetadataResponsePartition] = field(default_factory=list)
    topic_authorized_operations: Annotated[Int32, V("8+")] = -0x8000_0000


@dataclass(slots=True, kw_only=True)
class MetadataResponse:
    throttle_time_ms: Annotated[Int32, V("3+")] = 0
    brokers: list[MetadataResponseBroker] = field(default_factory=list)
    cluster_id: Annotated[String | None, V("2+")] = None
    controller_id: Annotated[Int32, V("1+")] = -1
    topics: list[MetadataResponseTopic] = field(default_factory=list)
    cluster_authorized_operations: Annotated[Int32, V("8-10")] = -0x8000_0000
    error_code: Annotated[Int16, V("13+")] = 0


API: Final = Api(ApiKey.METADATA, MetadataRequest, MetadataResponse, versions="0-13", flexible="9+")
