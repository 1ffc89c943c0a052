"""DescribeUserScramCredentials (key 50): which users have SCRAM credentials (KIP-554).

Source: DescribeUserScramCredentialsRequest.json, DescribeUserScramCredentialsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Int8, Int16, Int32, String


@dataclass(slots=True, kw_only=True)
class UserName:
    name: String = ""


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class CredentialInfo:
    mechanism: Int8 = 0
    iterations: Int32 = 0


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsResult:
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""
    credential_infos: list[CredentialInfo] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[DescribeUserScramCredentialsResult] = field(default_factory=list)


API: Final = Api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    versions="0",
    flexible="0+",
)
