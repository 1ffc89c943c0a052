"""DescribeUserScramCredentials: credentials cannot be set, so no user has one.

Source: org.apache.kafka.image.ScramImage#describe.
Shell.
"""

from collections import Counter

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


async def handle(
    broker: Broker, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Answer *request*; null asks for all users, and none has credentials."""
    counts = Counter(user.name for user in request.users or [])
    return DescribeUserScramCredentialsResponse(
        results=[_result(name, count) for name, count in counts.items()]
    )


def _result(name: str, count: int) -> DescribeUserScramCredentialsResult:
    code = ErrorCode.RESOURCE_NOT_FOUND
    message = f"Attempt to describe a user credential that does not exist: {name}"
    if count > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
