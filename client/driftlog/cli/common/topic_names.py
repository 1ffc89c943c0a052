"""Valid topic names, and the text of topic ids, as in Kafka.

Source: org.apache.kafka.common.internals.Topic, org.apache.kafka.common.Uuid.
Pure.
"""

import re
from base64 import urlsafe_b64encode
from typing import Final
from uuid import UUID

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_RULE: Final = (
    "a topic's name has 1 to 249 letters, digits, '.', '_' and '-' of ASCII, and is not '.' or '..'"
)


def topic_name_problem(name: str) -> str | None:
    """Why the name is not valid; None: it is."""
    return None if _NAME.fullmatch(name) and name not in (".", "..") else _RULE


def topic_id_text(topic_id: UUID) -> str:
    """``MZvYmPvkSPmIKBOWY1jLjg``: base64 for URLs, without padding."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
