"""What etcd's refusals mean to the caller: nothing happened, or the outcome is unknown.

    gRPC status ──▶ Verdict ──▶ another endpoint, a new token, or an error of the port

A refusal is certain to have done nothing only if etcd decides it before it proposes, or by not
applying; the table has these.  After every other answer to a write ("leader changed", "request
timed out", a broken connection) the write may have happened.

Source: etcd's api/v3rpc/rpctypes/error.go; server/etcdserver/v3_server.go,
api/v3rpc/interceptor.go and quota.go for where each is raised (3.4 to 3.6).
Adapter.
"""

from enum import Enum, auto
from typing import Final

import grpc

from driftlog_metadata.stores.errors import (
    AnswerTooLargeError,
    DeclinedError,
    StoreError,
    UnavailableError,
)
from driftlog_metadata.stores.store import CompactedError, LeaseNotFoundError


class EtcdVerdict(Enum):
    """The meaning of an answer that is not a result."""

    ELSEWHERE = auto()
    """Nothing happened here; another member may succeed."""
    TOKEN = auto()
    """Nothing happened: the token is old, or there is none."""
    REFUSED = auto()
    """Nothing happened, nor would it at another member."""
    TOO_LARGE = auto()
    """Nothing happened: over a limit of the server's."""
    LEASE_GONE = auto()
    LEASE_EXISTS = auto()
    COMPACTED = auto()
    ANSWER_TOO_LARGE = auto()
    """It was done, and the answer is over this client's limit."""
    UNKNOWN = auto()
    """It may have happened."""


class LeaseExistsError(StoreError):
    """A lease of this id exists."""


class EtcdRefusedError(DeclinedError):
    """etcd understood and declined; the same request fails until an operator acts."""


_ETCD: Final = "etcdserver: "

_TOO_LARGE_HERE: Final = "Received message larger than max"
"""What gRPC says of an answer over ``grpc.max_receive_message_length``; it has not read it."""

_VERDICTS: Final = {
    "no leader": EtcdVerdict.ELSEWHERE,
    "rpc not supported for learner": EtcdVerdict.ELSEWHERE,
    "not capable": EtcdVerdict.ELSEWHERE,
    "invalid auth token": EtcdVerdict.TOKEN,
    "revision of auth store is old": EtcdVerdict.TOKEN,
    "user name is empty": EtcdVerdict.TOKEN,
    "too many requests": EtcdVerdict.REFUSED,
    "mvcc: database space exceeded": EtcdVerdict.REFUSED,
    "permission denied": EtcdVerdict.REFUSED,
    "user name not found": EtcdVerdict.REFUSED,
    "authentication failed, invalid user ID or password": EtcdVerdict.REFUSED,
    "root user does not exist": EtcdVerdict.REFUSED,
    "request is too large": EtcdVerdict.TOO_LARGE,
    "too many operations in txn request": EtcdVerdict.TOO_LARGE,
    "duplicate key given in txn request": EtcdVerdict.TOO_LARGE,
    "too large lease TTL": EtcdVerdict.TOO_LARGE,
    "requested lease not found": EtcdVerdict.LEASE_GONE,
    "lease already exists": EtcdVerdict.LEASE_EXISTS,
    "mvcc: required revision has been compacted": EtcdVerdict.COMPACTED,
}

_ADVICE: Final = {
    "no leader": "its cluster has lost its quorum, or is electing",
    "too many requests": "etcd applies more slowly than it receives requests: check its disk",
    "mvcc: database space exceeded": (
        "etcd is full: compact it and defragment every member (etcdctl compaction, etcdctl "
        "defrag), or raise --quota-backend-bytes; then disarm the alarm (etcdctl alarm disarm)"
    ),
    "permission denied": "grant the user a role that reads and writes the prefix /driftlog/v1/",
    "user name is empty": "etcd wants a user and a password, and none are set",
    "user name not found": "the user was deleted: etcdctl user add",
    "authentication failed, invalid user ID or password": "check the user and the password",
    "request is too large": "etcd's --max-request-bytes is below its default",
    "too many operations in txn request": "etcd's --max-txn-ops is below its default",
}


def verdict(details: str) -> EtcdVerdict:
    """The verdict of a gRPC status' details, or of the reason why a watch was cancelled."""
    if _TOO_LARGE_HERE in details:
        return EtcdVerdict.ANSWER_TOO_LARGE
    return _VERDICTS.get(_reason(details), EtcdVerdict.UNKNOWN)


def is_from_etcd(details: str) -> bool:
    """Whether this is from etcd, and not from a proxy or gRPC."""
    return _ETCD in details


def describe(details: str) -> str:
    """*details*, with advice where there is some."""
    advice = _ADVICE.get(_reason(details))
    return f"{details} ({advice})" if advice else details


def error_of(found: EtcdVerdict, message: str) -> Exception:
    """The error for a verdict that is final, of a call or of a watch."""
    match found:
        case EtcdVerdict.LEASE_GONE:
            return LeaseNotFoundError(message)
        case EtcdVerdict.LEASE_EXISTS:
            return LeaseExistsError(message)
        case EtcdVerdict.COMPACTED:
            return CompactedError(message)
        case EtcdVerdict.ANSWER_TOO_LARGE:
            return AnswerTooLargeError(message)
        case EtcdVerdict.TOO_LARGE:
            return ValueError(message)
        case EtcdVerdict.REFUSED | EtcdVerdict.TOKEN:
            return EtcdRefusedError(message)
        case EtcdVerdict.ELSEWHERE | EtcdVerdict.UNKNOWN:
            return UnavailableError(message)


def details_of(error: grpc.aio.AioRpcError) -> str:
    """The reason of a failed call, in one line; never empty."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and _ETCD not in (error.details() or ""):
        return "no answer in time"
    return " ".join((error.details() or error.code().name).split())


def _reason(details: str) -> str:
    # The reason of a cancelled watch has a prefix: `rpc error: code = … desc = etcdserver: …`
    return details.rpartition(_ETCD)[2] if _ETCD in details else ""
