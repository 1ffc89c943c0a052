"""Makes text of clients safe in log lines: cut, and unable to steer a terminal or forge a line.

Pure.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

CLIENT_CHARACTERS: Final = 200
"""Limit of one string that a client chose."""

OWN_CHARACTERS: Final = 4_000
"""Limit of one string that the agent wrote; it may contain names and errors of others."""

TRACEBACK_CHARACTERS: Final = 16_000
"""Limit of one traceback: its end, which names the error, is kept."""

_CLIENT_KEYS: Final = frozenset(
    "api client client_id group group_id instance_id member member_id principal topic".split()
)
"""Values of these keys come from a client in every line; in a line with a client all values do."""

_OWN_KEYS: Final = frozenset(("advice", "means"))

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)
"""C0 and C1 controls (such as ESC, BEL and newlines), line separators, characters that are
invisible or turn the direction of text, and lone surrogates, which cannot be encoded."""


def escaped(text: str, characters: int) -> str:
    """*text* as one line of visible characters: at most *characters*, and how many are left out."""
    left_out = len(text) - characters
    if left_out > 0:
        text = text[:characters]
    text = _UNSAFE.sub(_escape, text)
    return f"{text}… ({left_out} more characters)" if left_out > 0 else text


def escaped_traceback(text: str) -> str:
    """*text* with each of its lines indented, so that none looks like a line of the log."""
    if len(text) > TRACEBACK_CHARACTERS:
        text = f"…\n{text[-TRACEBACK_CHARACTERS:]}"
    return "\n".join(f"  {escaped(line, OWN_CHARACTERS)}" for line in text.split("\n"))


def escaped_line(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a line, safe to show; numbers, booleans and None stay unchanged."""
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
