"""Footers of flush objects as they are stored, within a budget: the one unused longest goes first.

Encoded footers take a tenth of the memory of decoded ones.  Objects never change, so no entry is
ever wrong; an entry whose object no flush record names any more is dropped.

Pure.
"""

from collections import OrderedDict

from driftlog_tiering.foundation.types import Buffer


class EncodedFooters:
    """See the module; by object key.

    Args:
        budget_bytes: of all entries; a larger footer is not kept.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[str, Buffer] = OrderedDict()

    def get(self, object_key: str) -> Buffer | None:
        """The footer of an object, which was used just now; None: it is not kept."""
        encoded = self._entries.get(object_key)
        if encoded is not None:
            self._entries.move_to_end(object_key)
        return encoded

    def __contains__(self, object_key: str) -> bool:
        return object_key in self._entries

    def keep(self, object_key: str, encoded: Buffer) -> None:
        """Adds a footer, in place of what is unused longest."""
        self.drop(object_key)
        if len(encoded) > self.budget_bytes:
            return
        self._entries[object_key] = encoded
        self.size_bytes += len(encoded)
        while self.size_bytes > self.budget_bytes:
            self.size_bytes -= len(self._entries.popitem(last=False)[1])

    def drop(self, object_key: str) -> None:
        """Removes the footer of an object; nothing if it is not kept."""
        self.size_bytes -= len(self._entries.pop(object_key, b""))

    def inherit(self, before: "EncodedFooters") -> None:
        """Adds the entries of *before*, in their order."""
        for object_key, encoded in before._entries.items():
            self.keep(object_key, encoded)
