"""The object store port: a bucket of immutable objects.

Keys are relative to the store's prefix: ``/``-separated, UTF-8, without a
leading slash, without empty, ``.`` or ``..`` components (`object_keys` has the limits;
any other key is a ValueError).  No key is the folder of another (``a`` and ``a/b``).

Every method may raise `UnavailableError` (throttled, refused: nothing
happened); `put`, `create` and `delete` may raise `OutcomeUnknownError` (it may
have happened).  Cancelling a call has the same meaning as losing its answer.
Implementations do not retry: the caller owns the request's deadline.

Port: `tests/contract/test_object_store.py` is its definition.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from driftlog_metadata.stores.errors import DeclinedError, StoreError
from driftlog_tiering.foundation.types import Buffer


class NotFoundError(StoreError):
    """The store itself answers that there is no object under one key.

    Only `get` and `stat` raise it: an object that a listing does not show may exist.  A store with
    a node that lags may raise it for a moment though the object exists: read again before you rely
    on it.
    """


class AlreadyExistsError(StoreError):
    """The key is taken, perhaps by our own attempt whose answer was lost."""


class AccessDeniedError(DeclinedError):
    """No credentials, or they do not suffice.  A retry helps only after an operator's repair."""


class BucketNotFoundError(DeclinedError):
    """The bucket does not exist (or not in this region).  An operator must create or name it."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object in a listing.  ``modified_ms``: when its PUT was taken, by the store's clock."""

    key: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a listing; ``store_now_ms`` is the store's clock when it answered."""

    objects: tuple[ObjectInfo, ...]
    store_now_ms: int


class ObjectStore(Protocol):
    """Strongly consistent, immutable objects."""

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        """Create the object, whole or not at all, durable when this returns.

        *body* is the concatenation of its buffers, which must not change until the
        call is over.  The caller never uses a key twice, so this asks the store for no
        condition (one request, and S3's conditional writes cost nothing where they
        are not needed).
        """
        ...

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        """As `put`, but only if the key is not there (S3: ``If-None-Match: *``); atomic.

        Raises:
            AlreadyExistsError: the key is taken; the object that is there is unchanged.
        """
        ...

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        """The bytes ``[start, end)`` of the object; *end* None or past its size: to its end.

        ``start`` at or past the object's size gives none.  A view may be of memory that is
        used again when its last view is gone.

        Raises:
            NotFoundError: no such object.
        """
        ...

    async def stat(self, key: str) -> ObjectInfo:
        """Size and age without the body.

        Raises:
            NotFoundError: no such object.
        """
        ...

    def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        """Objects whose key starts with *prefix* and sorts after *start_after* (UTF-8 byte order).

        Pages of *page_size* (≤ 1000), the last one of what is left; at least one page, perhaps
        empty, so that the store's clock is known.  A caller that needs the first key asks for one
        page of 1.

        What has no key of this port is not listed: folder markers, which S3 consoles and file
        gateways make (empty objects whose keys end in ``/``), do not count as objects.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects (any number); missing ones are no error."""
        ...

    async def close(self) -> None:
        """Release connections.  The store is not used afterwards."""
        ...
