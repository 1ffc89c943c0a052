"""The meaning of an S3 answer, or of its absence, for the request: one of the port's errors.

A write that S3 refused in its own words has not happened.  One that ended in any other
way may have: an answer that never came, a 500 (*"We encountered an internal error"*:
the object may be stored), a 502, 503 or 504 of a proxy on the way.  For reads there is
no difference: they change nothing.

| answer                                             | a write becomes       |
|----------------------------------------------------|-----------------------|
| 412 (only `create` asks for a condition)           | `AlreadyExistsError`  |
| 409 ConditionalRequestConflict, OperationAborted   | `UnavailableError`    |
| SlowDown, Throttling…, RequestLimitExceeded        | `UnavailableError`    |
| 400 RequestTimeout, IncompleteBody, BadDigest      | `UnavailableError`    |
| 403, expired or wrong credentials, none found      | `AccessDeniedError`   |
| NoSuchBucket                                       | `BucketNotFoundError` |
| 404 without a code of S3's                         | `OutcomeUnknownError` |
| 3xx, other 4xx, 501                                | `UnavailableError`    |
| 500, 502, 504, 503 without a code of throttling, … | `OutcomeUnknownError` |
| no connection (refused, DNS, TLS, connect timeout) | `UnavailableError`    |
| connection lost, read timeout, anything else       | `OutcomeUnknownError` |

An object is absent when S3 itself says so of that object: a GET that is answered with NoSuchKey
is `NotFoundError`, and nothing else is.  A 404 without that code is a proxy's page, and a listing
has no object that could be absent: both are `UnavailableError`.  A HEAD has no body, so its 404
has no code; `S3ObjectStore.stat` repeats it as a GET.

A 409 is not a 412: S3 says "retry the upload", as the key may just have been deleted, or
another's upload may still fail; the retry gets the 412.  RequestTimeout and its like say that
S3 did not receive the whole body.

Source: "Error responses" and "Conditional writes" in the Amazon S3 documentation.

Adapter.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Final

import aiohttp
from botocore import exceptions as boto

from driftlog_metadata.stores.errors import OutcomeUnknownError, StoreError, UnavailableError
from driftlog_tiering.stores.object_store import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    NotFoundError,
)

_THROTTLED: Final = frozenset(
    {
        "SlowDown",
        "SlowDownRead",  # MinIO's.
        "SlowDownWrite",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "TooManyRequests",
        "TooManyRequestsException",
    }
)

_DENIED: Final = {
    "AccessDenied": "the credentials are good, but their policy does not allow this",
    "AllAccessDisabled": "S3 has disabled access to this bucket or account",
    "AccountProblem": "the account has a problem; ask AWS",
    "InvalidAccessKeyId": "the access key does not exist; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is not the access key's; check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired; renew the credentials",
    "InvalidToken": "the session token is not valid; check AWS_SESSION_TOKEN",
    "TokenRefreshRequired": "the session token must be renewed",
    "RequestTimeTooSkewed": "this machine's clock is wrong; set it",
    "403": "the credentials do not allow this (reading also needs s3:ListBucket, "
    "or a missing object looks forbidden)",
}

_NO_CREDENTIALS: Final = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.NoAuthTokenError,
    boto.SSOError,
    boto.ProfileNotFound,
    boto.ConfigParseError,
)

_BEFORE_SENDING: Final = (
    boto.ConnectTimeoutError,
    boto.ProxyConnectionError,
    boto.SSLError,
    boto.NoRegionError,
    boto.InvalidRegionError,
    boto.EndpointProviderError,
    boto.ParamValidationError,
    boto.InvalidEndpointConfigurationError,
)

_ABSENT: Final = "NoSuchKey"

_CHAINED: Final = 16
"""Limit of the chain of causes that is followed: botocore and aiohttp chain four."""


@contextmanager
def translated(what: str, *, writes: bool, reads_key: bool = False) -> Iterator[None]:
    """Turn the block's exceptions into errors of the port; cancellation passes.

    *reads_key*: it is a GET of one object, which may be absent.
    """
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        _let_go(error)
        raise translate(error, what, writes=writes, reads_key=reads_key) from error
    except BaseException as error:
        _let_go(error)
        raise


def _let_go(error: BaseException) -> None:
    """Empty the frames of a failed request, which hold its body.

    botocore's frames hold the error too, in a cycle that only the garbage collector ends; it
    counts objects, not bytes, and gigabytes gathered while a store was down.
    """
    chained: BaseException | None = error
    for _ in range(_CHAINED):
        if chained is None:
            return
        clear_frames(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__


def translate(error: Exception, what: str, *, writes: bool, reads_key: bool = False) -> StoreError:
    """The port's error for *error*, met while doing *what* (``put s3://bucket/key``)."""
    if isinstance(error, boto.ClientError):
        return _answer(error, what, writes=writes, reads_key=reads_key)
    if isinstance(error, _NO_CREDENTIALS):
        return AccessDeniedError(
            f"{what}: no credentials: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "AWS_PROFILE, or give the machine a role"
        )
    if not writes or isinstance(error, _BEFORE_SENDING) or _not_connected(error):
        return UnavailableError(f"{what}: {error!r}")
    return OutcomeUnknownError(f"{what}: {error!r}")


def refusal(code: str, message: str, what: str) -> StoreError | None:
    """The error for one of S3's codes, if the code alone says that nothing happened."""
    told = f"{what}: {code}: {message}"
    if code in _DENIED:
        return AccessDeniedError(f"{told}: {_DENIED[code]}")
    if code == "NoSuchBucket":
        return BucketNotFoundError(
            f"{told}: make the bucket, or correct its name (S3's have no upper-case letters) or "
            f"the endpoint"
        )
    if code in _THROTTLED:
        return UnavailableError(told)
    return None


def _answer(error: boto.ClientError, what: str, *, writes: bool, reads_key: bool) -> StoreError:
    answer = error.response
    code = str(answer.get("Error", {}).get("Code", ""))
    message = str(answer.get("Error", {}).get("Message", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if refused := refusal(code, message, what):
        return refused
    told = f"{what}: {status} {code}: {message}"
    match status:
        case 404 if reads_key and code == _ABSENT:
            return NotFoundError(what)
        case 404 if writes and not code.startswith("NoSuch"):
            return OutcomeUnknownError(f"{told}: a 404 that is not S3's; is there a proxy?")
        case 403:
            return AccessDeniedError(f"{told}: {_DENIED['403']}")
        case 412 if writes:
            return AlreadyExistsError(what)
        case 301 | 307 | 400 if code in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
            return UnavailableError(f"{told}: the bucket is in another region; set AWS_REGION")
        case 501:
            return UnavailableError(f"{told}: this S3 server cannot do what driftlog needs")
        case _ if 300 <= status < 500 or not writes:
            return UnavailableError(told)
        case _:
            return OutcomeUnknownError(told)


def _not_connected(error: Exception) -> bool:
    """
    aiobotocore says EndpointConnectionError also when a connection broke under a
    request; only aiohttp's own error inside tells whether there ever was one.
    """
    return isinstance(error, boto.EndpointConnectionError) and isinstance(
        error.kwargs.get("error"), aiohttp.ClientConnectorError
    )
