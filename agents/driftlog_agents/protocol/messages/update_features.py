"""UpdateFeatures (key 57): sets the finalized level of features (KIP-584).

| version | change |
|---|---|
| 1 | upgrade types, validate only |
| 2 | one error for all features |

Source: UpdateFeaturesRequest.json, UpdateFeaturesResponse.json.
Pure.
"""

from dataclasses import dataclass, field
from typing import Annotated, Final

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.types import Bool, Int8, Int16, Int32, String, V


@dataclass(slots=True, kw_only=True)
class FeatureUpdateKey:
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[Bool, V("0")] = False
    upgrade_type: Annotated[Int8, V("1+")] = 1


@dataclass(slots=True, kw_only=True)
class UpdateFeaturesRequest:
    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = field(default_factory=list)
    validate_only: Annotated[Bool, V("1+")] = False


@dataclass(slots=True, kw_only=True)
class UpdatableFeatureResult:
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""


@dataclass(slots=True, kw_only=True)
class UpdateFeaturesResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: Annotated[list[UpdatableFeatureResult], V("0-1")] = field(default_factory=list)


API: Final = Api(
    ApiKey.UPDATE_FEATURES,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    versions="0-2",
    flexible="0+",
)
