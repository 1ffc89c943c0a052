"""DescribeDelegationToken (key 41): delegation tokens of owners (KIP-48).

| version | change |
|---|---|
| 1 | the oldest |
| 2 | flexible |
| 3 | the requester of a token (KIP-373) |

Source: DescribeDelegationTokenRequest.json, DescribeDelegationTokenResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bytes, Int16, Int32, Int64, String, V


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenOwner:
    principal_type: String = ""
    principal_name: String = ""


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenRequest:
    owners: list[DescribeDelegationTokenOwner] | None = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribedDelegationTokenRenewer:
    principal_type: String = ""
    principal_name: String = ""


@dataclass(slots=True, kw_only=True)
class DescribedDelegationToken:
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, V("3+")] = ""
    token_requester_principal_name: Annotated[String, V("3+")] = ""
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenResponse:
    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = field(default_factory=list)
    throttle_time_ms: Int32 = 0


API: Final = Api(
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    versions="1-3",
    flexible="2+",
)
