"""Text of clients in log lines: cut, and without what steers a terminal or forges a line.

Pure.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

CLIENT_CHARACTERS: Final = 200
"""Most of one string that a client chose."""

OWN_CHARACTERS: Final = 4_000
"""Most of one string that the agent wrote; names and errors of others may be in it."""

TRACEBACK_CHARACTERS: Final = 16_000
"""Most of one traceback: its end, which says what went wrong, is kept."""

_CLIENT_KEYS: Final = frozenset(
    "api client client_id group group_id instance_id member member_id principal topic".split()
)
"""Values of these are a client's in every line; in a line with a client all are."""

_OWN_KEYS: Final = frozenset(("advice", "means"))

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\ufff9-\ufffb]"
)
"""C0 and C1 controls (ESC, BEL and newlines are some), line separators, what is invisible or
turns the direction of text, and halves of characters, which cannot be encoded."""


def escaped(text: str, characters: int) -> str:
    """*text* as one line of visible characters, at most *characters* of it and what it lacks."""
    left_out = len(text) - characters
    if left_out > 0:
        text = text[:characters]
    text = _UNSAFE.sub(_escape, text)
    return f"{text}… ({left_out} more characters)" if left_out > 0 else text


def escaped_traceback(text: str) -> str:
    """*text* with its lines, each of them indented: none passes for a line of the log."""
    if len(text) > TRACEBACK_CHARACTERS:
        text = f"…\n{text[-TRACEBACK_CHARACTERS:]}"
    return "\n".join(f"  {escaped(line, OWN_CHARACTERS)}" for line in text.split("\n"))


def escaped_line(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a line, safe to be shown; numbers and the like stay what they are."""
    of_client = "client" in fields
    safe: dict[str, Any] = {}
    for key, value in fields.items():
        if key == "exception":
            safe[key] = escaped_traceback(str(value))
        elif value is None or type(value) in (bool, int, float):
            safe[key] = value
        else:
            own = key in _OWN_KEYS or not (of_client or key in _CLIENT_KEYS)
            text = value if isinstance(value, str) else repr(value)
            shown = escaped(text, OWN_CHARACTERS if own else CLIENT_CHARACTERS)
            safe[key] = value if shown == text else shown
    return safe


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
