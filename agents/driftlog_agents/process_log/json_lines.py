"""A line of the log as one JSON object: ``ts``, ``level``, ``event``, then the event's own keys.

Pure.
"""

import json
import math
from collections.abc import MutableMapping
from typing import Any


def json_line(_: Any, __: str, fields: MutableMapping[str, Any]) -> str:
    """A renderer of structlog; the field ``timestamp`` becomes ``ts``."""
    rest = dict(fields)
    head = {
        "ts": rest.pop("timestamp", None),
        "level": rest.pop("level", None),
        "event": rest.pop("event", None),
    }
    return json.dumps({**head, **{key: _value(value) for key, value in rest.items()}}, default=repr)


def _value(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
