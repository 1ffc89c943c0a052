"""InitProducerId: an id for an idempotent producer.

A producer without a transactional id always gets a new id at epoch 0, whatever id it had
(TransactionCoordinator#handleInitProducerId); clients bump epochs by themselves.

There are no transactions yet.  A transactional id is refused as not authorized: that is the one
error that both the Java client (TransactionManager) and librdkafka (rd_kafka_idemp_check_error)
treat as final and report at once.  They retry others until they time out.
Shell.
"""

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.producer_ids import log_transactional_id
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


async def handle(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """Answer *request*."""
    transactional_id = request.transactional_id
    if transactional_id == "" or (request.producer_id == -1) != (request.producer_epoch == -1):
        return _failed(ErrorCode.INVALID_REQUEST)
    if transactional_id is not None:
        log_transactional_id(transactional_id, context)
        return _failed(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next())
    except RefusedError as error:
        return _failed(error.code)


def _failed(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
