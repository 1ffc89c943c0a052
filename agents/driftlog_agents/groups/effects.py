"""What the machines of groups want done: answers, and writes that come first.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request, with the response of the machine that it was for."""

    request_id: int
    response: object


@dataclass(frozen=True, slots=True)
class Persist:
    """Store *puts*, all or none, and say with *token* what became of it; None deletes.

    Names are what comes after the group's key: "" is its own value.
    """

    token: int
    puts: Mapping[str, bytes | None]


Effect = Answer | Persist
