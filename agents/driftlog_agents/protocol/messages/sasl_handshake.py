"""SaslHandshake (key 17): the mechanism by which a client wants to authenticate.

| version | change |
|---|---|
| 0 | tokens follow as they are |
| 1 | tokens follow in SaslAuthenticate (KIP-152) |

Source: SaslHandshakeRequest.json, SaslHandshakeResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int16, String


@dataclass(slots=True, kw_only=True)
class SaslHandshakeRequest:
    mechanism: String = ""


@dataclass(slots=True, kw_only=True)
class SaslHandshakeResponse:
    error_code: Int16 = 0
    mechanisms: list[String] = field(default_factory=list)


API: Final = Api(
    ApiKey.SASL_HANDSHAKE,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    versions="0-1",
    flexible="none",
)
