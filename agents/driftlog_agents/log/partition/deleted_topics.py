"""Topics that are being deleted, or are gone: the latest of them.

A topic's id is never used again, so what is forgotten here is only asked for by what is late; it
is found to be gone once more, then.

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
        is_known: whether the view still has the topic; it is not forgotten here
            while that is so.
    """

    def __init__(self, is_known: Callable[[UUID], bool] = lambda _: False) -> None:
        self._is_known = is_known
        self._ids: dict[UUID, None] = {}

    def __contains__(self, topic_id: UUID) -> bool:
        return topic_id in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, topic_id: UUID) -> None:
        """*topic_id* is going, or is gone."""
        self._ids[topic_id] = None
        if len(self._ids) > LIMIT:
            oldest = next((one for one in self._ids if not self._is_known(one)), None)
            if oldest is not None:
                del self._ids[oldest]
