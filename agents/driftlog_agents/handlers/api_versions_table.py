"""Which APIs and versions an agent says that it speaks: one table, and what follows from it.

Produce is said to start at 0 though 0 to 2 are hung up on: older librdkafka sends uncompressed
where it does not (KAFKA-18659).

Pure.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from driftlog_agents.protocol.registry import API

ADVERTISED: Final[Mapping[ApiKey, tuple[int, int]]] = MappingProxyType(
    {
        ApiKey(key): (api.advertised.start, api.advertised[-1])
        for key, api in sorted(API.items())
        if api.served
    }
)
"""First and last version of each API that has a handler, both included."""

METADATA_VERSION: Final = (7, 30)
"""Feature levels of ``metadata.version`` in Kafka 4.3: 3.3-IV3 to 4.3-IV0.  Tools read it as the
version of the cluster."""

FEATURES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"group.version": (1, 1), "metadata.version": METADATA_VERSION}
)
"""First and last level of what Kafka calls features; all are at their last.  ``group.version`` 1:
groups of KIP-848; Java clients before 3.9 hang up on a first level of 0, which Kafka has.  One
that is not listed is not there: transactions of KIP-890 are asked for by feature."""


def versions_response() -> ApiVersionsResponse:
    """The answer to every ApiVersions request that is in order."""
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=least, max_version=most)
            for key, (least, most) in ADVERTISED.items()
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=first, max_version=last)
            for name, (first, last) in FEATURES.items()
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=last, min_version_level=last)
            for name, (_, last) in FEATURES.items()
        ],
    )


def unsupported_version_response() -> ApiVersionsResponse:
    """The answer, to be encoded in version 0, to an ApiVersions request of an unknown version.

    It says only which versions of ApiVersions itself there are (KIP-511).
    """
    least, most = ADVERTISED[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=least, max_version=most)],
    )
