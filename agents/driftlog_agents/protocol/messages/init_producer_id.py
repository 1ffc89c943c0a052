"""InitProducerId (key 22): a producer id and epoch for an idempotent producer.

| version | change |
|---|---|
| 2 | flexible |
| 3 | bumps the epoch of the id that is given (KIP-360) |
| 4 | PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH |
| 5 | TRANSACTION_ABORTABLE (KIP-890) |

Version 6 (two-phase commit) is not stable in Kafka 4.3.
Source: InitProducerIdRequest.json, InitProducerIdResponse.json.
Pure.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, Int64, String, V


@dataclass(slots=True, kw_only=True)
class InitProducerIdRequest:
    transactional_id: String | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, V("3+")] = -1
    producer_epoch: Annotated[Int16, V("3+")] = -1


@dataclass(slots=True, kw_only=True)
class InitProducerIdResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0


API: Final = Api(
    ApiKey.INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
    versions="0-5",
    flexible="2+",
)
