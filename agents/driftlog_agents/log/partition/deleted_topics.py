"""Topics that are being deleted, or were deleted: the latest of them.

A topic's id is never used again, so only late work asks for an id that is forgotten here; a lookup
then finds again that the topic was deleted.

Pure.
"""

from collections.abc import Callable
from typing import Final
from uuid import UUID

LIMIT: Final = 10_000
"""More: late batches of more deleted topics are known as such at once; 2 MiB of memory."""


class DeletedTopics:
    """See the module.

    Args:
        is_known: whether the view still has the topic; such a topic is not forgotten here.
        limit: most topics, but for those that are known.
    """

    def __init__(
        self, is_known: Callable[[UUID], bool] = lambda _: False, limit: int = LIMIT
    ) -> None:
        self._is_known = is_known
        self._limit = limit
        self._ids: dict[UUID, None] = {}

    def __contains__(self, topic_id: UUID) -> bool:
        return topic_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, topic_id: UUID) -> None:
        """Note that *topic_id* is being deleted, or was deleted."""
        self._ids[topic_id] = None
        if len(self._ids) > self._limit:
            oldest = next((one for one in self._ids if not self._is_known(one)), None)
            if oldest is not None:
                del self._ids[oldest]
