"""ACLs, delegation tokens and SASL of a cluster without an authorizer and without authentication.

There is no authorizer, and every listener is plain text: the answers are Kafka's errors for that.
Source: kafka.server.AclApis, kafka.server.KafkaApis#handleDescribeTokensRequest,
#handleSaslHandshakeRequest.
Shell.
"""

from typing import Final

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from driftlog_agents.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from driftlog_agents.protocol.messages.describe_acls import (
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from driftlog_agents.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from driftlog_agents.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_NO_AUTHORIZER: Final = "No Authorizer is configured."


async def describe_acls(
    broker: Broker, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    """Answer a DescribeAcls request."""
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED,
        error_message="No Authorizer is configured on the broker",
    )


async def create_acls(
    broker: Broker, request: CreateAclsRequest, context: RequestContext
) -> CreateAclsResponse:
    """Answer a CreateAcls request."""
    refused = AclCreationResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
    )
    return CreateAclsResponse(results=[refused] * len(request.creations))


async def delete_acls(
    broker: Broker, request: DeleteAclsRequest, context: RequestContext
) -> DeleteAclsResponse:
    """Answer a DeleteAcls request."""
    refused = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
    )
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))


async def describe_delegation_token(
    broker: Broker, request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    """Answer a DescribeDelegationToken request."""
    return DescribeDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    )


async def sasl_handshake(
    broker: Broker, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    """Answer a SaslHandshake request: no mechanism.

    A client that is set to authenticate fails at once and says why.  It would take a closed
    connection for a fault of the network, and try for ever.
    """
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
