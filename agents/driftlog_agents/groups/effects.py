"""Effects that the group machines return: answers to requests, and writes to the metadata store.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request; *response* is a message of the machine's protocol."""

    request_id: int
    response: object


@dataclass(frozen=True, slots=True)
class Persist:
    """Store *puts*, all or none, and report the outcome to the machine with *token*.

    *puts* maps the part of a key after the group's key to a value: "" is the group's own value,
    None deletes the key.
    """

    token: int
    puts: Mapping[str, bytes | None]


Effect = Answer | Persist
