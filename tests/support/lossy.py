"""A metadata store some of whose transactions get lost.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Compare, MetadataStore, Operation, Put, TxnResult

_LATE_S = 2


class Lossy:
    """*fates* of the next transactions that matter (`matters`), one after the other.

    before: on the way there.  after: it happened, and nobody heard of it.  late: it happens two
    seconds after its caller gave up.  refused: it did not happen, and that was said.  never: no
    answer.  Anything else: it happens.
    """

    def __init__(self, store: MetadataStore, fates: Sequence[str] = ()) -> None:
        self._store = store
        self.fates = list(fates)
        self.asked = 0
        """Transactions that matter, so far."""
        self.meddle: Callable[[], Awaitable[object]] | None = None
        """Done before the next of them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def matters(self, then: Sequence[Operation]) -> bool:
        """Whether what does *then* may get lost."""
        raise NotImplementedError

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        if not self.matters(then):
            return await self._store.txn(compares, then, otherwise)
        self.asked += 1
        if self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            await meddle()
        match self.fates.pop(0) if self.fates else "":
            case "before":
                raise OutcomeUnknownError("lost on the way")
            case "refused":
                raise UnavailableError("no quorum")
            case "after":
                await self._store.txn(compares, then, otherwise)
                await self._store.txn((), [Put("/elsewhere", b"")])  # a revision more
                raise OutcomeUnknownError("the answer was lost")
            case "late":
                loop = asyncio.get_running_loop()
                late: Any = self._store.txn(compares, then, otherwise)
                loop.call_later(_LATE_S, lambda: loop.create_task(late))
                raise OutcomeUnknownError("travels")
            case "never":
                await asyncio.Event().wait()
            case _:
                pass
        return await self._store.txn(compares, then, otherwise)
