"""The interface of rewrites of sealed partitions, as compaction and merging use it.

    LogCleaner, SegmentMerger ──▶ Rewrites ──▶ `partition_rewrites`: partitions that are led here
                                          └──▶ `delegated/delegated_rewrites`: those of other agents

Shell.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeVar

from driftlog_agents.log.compaction.rewrite_ports import RewritePorts
from driftlog_agents.log.compaction.sealed_log import SealedLog
from driftlog_tiering.compaction.segment_rows import Bucket, RewriteEnvironment
from driftlog_tiering.formats.manifest import Manifest, ReplaceSegments

L = TypeVar("L", bound=SealedLog)
L_contra = TypeVar("L_contra", bound=SealedLog, contravariant=True)


class PartitionRewrite(NamedTuple):
    """One rewrite of a partition, from its newest manifest on."""

    manifest: Manifest
    bucket: Bucket


class Rewrites(Protocol[L_contra]):
    """See the module."""

    @property
    def ports(self) -> RewritePorts:
        """What rewrites use of the process."""
        ...

    @property
    def environment(self) -> RewriteEnvironment:
        """The same, for `Cleaner` and `Merger`."""
        ...

    @property
    def format_level(self) -> int:
        """The cluster's."""
        ...

    def version(self, log: L_contra) -> int | None:
        """A version that changes when `known` would return another manifest; None: a look has to
        wait until one is known.  It costs no request."""
        ...

    async def known(self, log: L_contra) -> Manifest:
        """A manifest that may be old, after `version` gave one; of a partition that is led here, it
        costs no request.

        Raises: as `current`.
        """
        ...

    async def current(self, log: L_contra) -> Manifest:
        """A manifest that has what the partition's key names.

        Raises:
            CorruptManifestError, UnavailableError, OutcomeUnknownError, TimeoutError: the bucket.
        """
        ...

    def may_compact(self, log: L_contra) -> bool:
        """Whether this agent knows the policy by which records of *log* were accepted."""
        ...

    def is_taken(self, log: L_contra) -> bool:
        """Whether *log* is rewritten now."""
        ...

    def rewrite(
        self, log: L_contra, sends: Callable[[ReplaceSegments], None] = ...
    ) -> AbstractAsyncContextManager[PartitionRewrite]:
        """The turn of *log*: no other rewrite of this agent works on it meanwhile.

        Args:
            sends: called with an edit before it is sent.

        Raises:
            PartitionBusyError: another rewrites the partition.
            VoidEditError: another edit was faster.
            CorruptManifestError, UnavailableError, OutcomeUnknownError, TimeoutError: the bucket.
        """
        ...

    def void(self, log: L_contra, manifest: Manifest) -> None:
        """An edit was void: *manifest* is the newest."""
        ...

    def drop(self, log: L_contra) -> None:
        """What is known of the manifest may be old: it is read again."""
        ...
