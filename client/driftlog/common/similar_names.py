"""Suggestions for misspelt names.

Pure.
"""

import difflib
from collections.abc import Iterable


def similar(name: str, known: Iterable[str]) -> str:
    """A suggestion for the misspelt *name*, as the end of a message; empty where none is close."""
    names = sorted(known)
    lower = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)
    inside = [other for other in names if len(name) > 2 and name.lower() in other.lower()]
    found = list(dict.fromkeys([*(lower[other] for other in close), *inside]))[:3]
    if not found:
        return ""
    return f"; did you mean {' or '.join(repr(other) for other in found)}?"
