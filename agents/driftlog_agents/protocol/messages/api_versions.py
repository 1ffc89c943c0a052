"""ApiVersions (key 18): which versions an agent speaks; a client's first request.

| version | change |
|---|---|
| 0–2 | empty request |
| 3 | flexible request body; the client's software name; features |
| 4 | min versions of 0 among features |

An unknown version is answered in version 0 with UNSUPPORTED_VERSION and the range of this key
(KIP-511), and the response header is v0 in all versions.
Source: ApiVersionsRequest.json, ApiVersionsResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Int16, Int32, Int64, String, V


@dataclass(slots=True, kw_only=True)
class ApiVersionsRequest:
    client_software_name: Annotated[String, V("3+")] = ""
    client_software_version: Annotated[String, V("3+")] = ""


@dataclass(slots=True, kw_only=True)
class ApiVersion:
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


@dataclass(slots=True, kw_only=True)
class SupportedFeatureKey:
    name: String = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


@dataclass(slots=True, kw_only=True)
class FinalizedFeatureKey:
    name: String = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


@dataclass(slots=True, kw_only=True)
class ApiVersionsResponse:
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = field(default_factory=list)
    throttle_time_ms: Annotated[Int32, V("1+")] = 0
    supported_features: Annotated[list[SupportedFeatureKey], V("3+", tag=0)] = field(
        default_factory=list
    )
    finalized_features_epoch: Annotated[Int64, V("3+", tag=1)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], V("3+", tag=2)] = field(
        default_factory=list
    )
    zk_migration_ready: Annotated[Bool, V("3+", tag=3)] = False


API: Final = Api(
    ApiKey.API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse, versions="0-4", flexible="3+"
)
