"""The metadata store as an agent uses it: every answer is shown to the process's witness.

    caller ──▶ evidence? ──none──▶ store ──▶ answer ──▶ witness ──▶ caller
                  └─ StoreNotOursError, nothing is sent

Once there is evidence that the store is another one, no request is sent, and no answer is
trusted: an earlier request may have happened, in either store.

Shell.
"""

from collections.abc import Sequence
from typing import Self

from driftlog_metadata.stores.errors import OutcomeUnknownError, StoreNotOursError
from driftlog_metadata.stores.store import (
    Compare,
    KeyValue,
    MetadataStore,
    Operation,
    PutEvent,
    StoreWentBackError,
    TxnResult,
    Watch,
    WatchEvent,
)
from driftlog_metadata.witness.witness import StoreWitness


class WitnessedStore:
    """A `driftlog_metadata.stores.store.MetadataStore` that the witness watches.

    Every method but ``close`` raises `StoreNotOursError` when there is evidence, and ``txn``
    `OutcomeUnknownError` when its own answer is the evidence.
    """

    def __init__(self, store: MetadataStore, witness: StoreWitness) -> None:
        self._store = store
        self.witness = witness

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        """See `driftlog_metadata.stores.store.MetadataStore.txn`."""
        self.refuse()
        asked = self.witness.asked()
        result = await self._store.txn(compares, then, otherwise)
        self.witness.answered(asked, result.revision)
        if self.witness.evidence is not None:
            raise OutcomeUnknownError(self.witness.evidence.reason)
        return result

    async def get(self, key: str) -> KeyValue | None:
        """See `driftlog_metadata.stores.store.MetadataStore.get`."""
        self.refuse()
        found = await self._store.get(key)
        self.refuse()
        return found

    async def get_prefix(
        self, prefix: str, *, keys_only: bool = False
    ) -> tuple[int, list[KeyValue]]:
        """See `driftlog_metadata.stores.store.MetadataStore.get_prefix`."""
        self.refuse()
        asked = self.witness.asked()
        revision, kvs = await self._store.get_prefix(prefix, keys_only=keys_only)
        self.witness.answered(asked, revision)
        self.refuse()
        return revision, kvs

    async def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.grant_lease`."""
        self.refuse()
        await self._store.grant_lease(lease_id, ttl_ms)

    async def keep_alive(self, lease_id: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.keep_alive`."""
        self.refuse()
        await self._store.keep_alive(lease_id)

    async def revoke_lease(self, lease_id: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.revoke_lease`."""
        self.refuse()
        await self._store.revoke_lease(lease_id)

    def watch(self, prefix: str, start_revision: int) -> Watch:
        """See `driftlog_metadata.stores.store.MetadataStore.watch`."""
        return _WitnessedWatch(self._store.watch(prefix, start_revision), self)

    async def close(self) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.close`."""
        await self._store.close()

    def refuse(self) -> None:
        """Raises StoreNotOursError: there is evidence."""
        if self.witness.evidence is not None:
            raise StoreNotOursError(self.witness.evidence.reason)


class _WitnessedWatch:
    """A `Watch` whose events are shown to the witness."""

    def __init__(self, watch: Watch, store: WitnessedStore) -> None:
        self._watch = watch
        self._store = store

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[WatchEvent]:
        """See `Watch`.

        Raises:
            StoreNotOursError: there is evidence.
        """
        witness = self._store.witness
        try:
            events = await anext(self._watch)
        except StoreWentBackError as error:
            witness.went_back(error.seen, error.found)
            raise
        for event in events:
            witness.saw(
                event.kv.mod_revision if isinstance(event, PutEvent) else event.mod_revision
            )
        self._store.refuse()
        return events

    async def aclose(self) -> None:
        await self._watch.aclose()
