"""The APIs and versions that ApiVersions publishes: one table, and the answers made from it.

Produce is advertised from version 0, although a request of 0 to 2 closes the connection: librdkafka
before 2.11.1 does not compress otherwise (KAFKA-18659).

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
from driftlog_agents.protocol.requests.registry import API
from driftlog_metadata.schema.model import FORMAT_VERSION

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
"""First and last level of each Kafka feature; the finalized level is the last.  ``group.version`` 1
means groups of KIP-848.  Its first level is not Kafka's 0, on which Java clients before 3.9 close
the connection.  A feature that is not listed is not supported: clients find transactions of KIP-890
by their feature."""

FORMAT_FEATURE: Final = "driftlog.version"
"""The feature whose level is the format level of the cluster."""


def versions_response(format_level: int) -> ApiVersionsResponse:
    """The answer to every valid ApiVersions request, in a cluster of *format_level*."""
    finalized = {name: last for name, (_, last) in FEATURES.items()} | {
        FORMAT_FEATURE: format_level
    }
    supported = {**FEATURES, FORMAT_FEATURE: (1, FORMAT_VERSION)}
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=least, max_version=most)
            for key, (least, most) in ADVERTISED.items()
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=first, max_version=last)
            for name, (first, last) in supported.items()
        ],
        finalized_features_epoch=format_level,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalized.items()
        ],
    )


def unsupported_version_response() -> ApiVersionsResponse:
    """The answer, to be encoded in version 0, to an ApiVersions request of an unknown version.

    It lists only the versions of ApiVersions itself (KIP-511).
    """
    least, most = ADVERTISED[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=least, max_version=most)],
    )
