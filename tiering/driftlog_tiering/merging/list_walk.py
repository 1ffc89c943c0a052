"""The lists of a manifest that may have small segments, the oldest first: `open_lists`.

Shell.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from driftlog_tiering.formats.manifest import SegmentList, SegmentListRef


async def open_lists(
    refs: Sequence[SegmentListRef],
    load: Callable[[SegmentListRef], Awaitable[SegmentList]],
    may_have_more: Callable[[SegmentListRef], bool],
) -> AsyncIterator[tuple[SegmentListRef, SegmentList]]:
    """The lists of segments under *refs*, one after another; those that cannot have something to
    merge are not loaded."""
    for ref in refs:
        if not may_have_more(ref):
            continue
        content = await load(ref)
        if content.segments:
            yield ref, content
        async for below in open_lists(content.lists, load, may_have_more):
            yield below
