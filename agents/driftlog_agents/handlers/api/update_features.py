"""UpdateFeatures: raises the format level of the cluster (`driftlog.version`).

The levels of Kafka's own features follow what the agents speak; clients cannot set them.  A request
is checked as Kafka checks it, against what ApiVersions publishes; one for the present level of a
feature succeeds.  The format level rises when all live agents know the new one, and never falls;
the bucket says it to jobs.
Source: org.apache.kafka.controller.FeatureControlManager#updateFeatures.
Shell.
"""

import asyncio
from enum import IntEnum

from driftlog_agents.cluster.format_level import raise_level, write_level
from driftlog_agents.handlers.common.api_versions_table import FORMAT_FEATURE, versions_response
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from driftlog_metadata.schema.model import RELEASES
from driftlog_metadata.stores.errors import DeclinedError


class UpgradeType(IntEnum):
    """Kafka's FeatureUpdate.UpgradeType."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


async def handle(
    broker: Broker, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Answer *request*: all features are updated, or none."""
    # If a feature is named twice, the last update counts.
    updates = {update.feature: update for update in request.feature_updates}
    for update in updates.values():
        try:
            _check(broker, update, _upgrade_type(update, context.api_version))
        except RefusedError as error:
            return UpdateFeaturesResponse(
                error_code=error.code,
                error_message="The update failed for all features since the following feature "
                f"had an error: {error.message}",
            )
    if FORMAT_FEATURE in updates:
        level = updates[FORMAT_FEATURE].max_version_level
        try:
            async with asyncio.timeout(max(0, request.timeout_ms) / 1000):
                await _raise(broker, level, validate_only=request.validate_only)
        except RefusedError as error:
            return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
        except TimeoutError:
            return UpdateFeaturesResponse(
                error_code=ErrorCode.REQUEST_TIMED_OUT,
                error_message="The metadata store or the bucket did not answer in time.",
            )
    return UpdateFeaturesResponse(
        error_message=None,
        results=[UpdatableFeatureResult(feature=name, error_message="NONE") for name in updates],
    )


async def _raise(broker: Broker, level: int, *, validate_only: bool) -> None:
    behind = await raise_level(broker.metadata, level, validate_only=validate_only)
    if behind is None:
        if not validate_only:
            await _write(broker)
        return
    knows = behind.knows
    raise RefusedError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {level} for feature {FORMAT_FEATURE}. Broker {behind.node_id} "
        f"only supports versions 1-{knows.format_level}: it runs release {knows.release}, and "
        f"level {level} needs {RELEASES[level - 1]}.",
    )


async def _write(broker: Broker) -> None:
    try:
        await write_level(broker.objects, broker.cluster_id, broker.format_level)
    except DeclinedError as error:
        raise RefusedError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"The cluster has level {broker.format_level}, and its bucket did not take the file "
            f"that says so to jobs: {error}. Repair that, and send the request again.",
        ) from error


def _upgrade_type(update: FeatureUpdateKey, version: int) -> int:
    if version == 0:
        allowed = update.allow_downgrade
        return UpgradeType.SAFE_DOWNGRADE if allowed else UpgradeType.UPGRADE
    return update.upgrade_type


def _check(broker: Broker, update: FeatureUpdateKey, upgrade_type: int) -> None:
    name, level = update.feature, update.max_version_level
    published = versions_response(broker.format_level)
    supported = {feature.name: feature for feature in published.supported_features}.get(name)
    finalized = {feature.name: feature for feature in published.finalized_features}.get(name)

    def refused(why: str) -> RefusedError:
        return RefusedError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature {name}. {why}",
        )

    if upgrade_type not in set(UpgradeType):
        raise refused("The controller does not support the given upgrade type.")
    if level < 0:
        raise refused("A feature version cannot be less than 0.")
    if supported is None:
        if level == 0:
            raise refused(f"Feature {name} not found.")
        raise refused(f"Local controller {broker.node_id} does not support this feature.")
    if not supported.min_version <= level <= supported.max_version:
        raise refused(
            f"Local controller {broker.node_id} only supports versions "
            f"{supported.min_version}-{supported.max_version}"
        )
    there = 0 if finalized is None else finalized.max_version_level
    if level < there and upgrade_type == UpgradeType.UPGRADE:
        raise refused(
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if name == FORMAT_FEATURE and level < there:
        raise refused("The format level of a cluster never falls.")
    if level != there and name != FORMAT_FEATURE:
        raise refused(
            f"It is {there} and follows the version of the agents: run other agents instead."
        )
