"""UnregisterBroker (key 64): removes a broker that is gone for good (KIP-500).

Source: UnregisterBrokerRequest.json, UnregisterBrokerResponse.json.
Pure.
"""

from dataclasses import dataclass
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class UnregisterBrokerRequest:
    broker_id: Int32 = 0


@dataclass(slots=True, kw_only=True)
class UnregisterBrokerResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


API: Final = Api(
    ApiKey.UNREGISTER_BROKER,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    versions="0",
    flexible="0+",
)
