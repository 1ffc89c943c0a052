"""Keys under our prefixes that no driftlog writes: passed over, and said once.

Of the metadata store, and of the bucket where it is listed.  Whatever wrote them, nothing of ours
ends for it, and nothing of theirs is deleted.  Several readers come upon the same key, in session
after session: an agent has one memory of what it said.

Shell.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import structlog

from driftlog_metadata.schema.codec import decode_at
from driftlog_metadata.schema.keys import parse_head_key, parse_session_key
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue

T = TypeVar("T")

_TOLD: Final = 1_000
"""Keys that are said; more of them are passed over without a word."""

_SESSION_ID = re.compile(r"[0-9a-f]{1,32}")
"""What agents call their sessions; the number decides which agent keeps a dead one's records."""


class UnknownKeys:
    """See the module."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._log = structlog.get_logger()

    def parsed(self, key: str, parse: Callable[[str], T]) -> T | None:
        """What *parse* makes of one of our keys; None: it is a foreign key."""
        try:
            return parse(key)
        except ValueError:
            self.say(key)
            return None

    def say(self, key: str) -> None:
        """*key* is foreign."""
        if key not in self._told and len(self._told) < _TOLD:
            self._told.add(key)
            self._log.warning(
                "foreign_key_found",
                key=key,
                advice="passed over and left alone: no driftlog writes it; delete it, or give it "
                "another place",
            )

    def is_ours(self, key: str, parse: Callable[[str], object]) -> bool:
        """Whether *key* is one of ours."""
        return self.parsed(key, parse) is not None

    def decoded(
        self, kvs: Iterable[KeyValue], decode: Callable[[bytes], T], parse: Callable[[str], object]
    ) -> list[T]:
        """Values, without those of foreign keys that cannot be read.

        Raises:
            CorruptError: one of ours cannot be.
        """
        found: list[T] = []
        for kv in kvs:
            try:
                found.append(decode_at(kv.key, kv.value, decode))
            except CorruptError:
                if self.is_ours(kv.key, parse):
                    raise
        return found


def head_of(key: str) -> str:
    """The session that a head is of.

    Raises:
        ValueError: it is none of an agent's.
    """
    return _checked(parse_head_key(key), key)


def session_of(key: str) -> str:
    """The session that a session's key is of.

    Raises:
        ValueError: it is none of an agent's.
    """
    return _checked(parse_session_key(key), key)


def _checked(session_id: str, key: str) -> str:
    if not _SESSION_ID.fullmatch(session_id):
        raise ValueError(f"not a session of an agent: {key!r}")
    return session_id
