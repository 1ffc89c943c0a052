"""Keys under driftlog's prefixes that no driftlog writes: skipped, and logged once.

They may be in the metadata store, and in the bucket where it is listed.  A foreign key stops no
work of the agent, and the agent does not delete it.  Several readers find the same key, in one
session after another: an agent has one memory of the keys that it has logged.

Shell.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import structlog

from driftlog_metadata.schema.codec import decode_at
from driftlog_metadata.schema.keys import parse_head_key, parse_session_key
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue

T = TypeVar("T")

_TOLD: Final = 1_000
"""Most keys that are logged; more of them are skipped silently."""

_SESSION_ID = re.compile(r"[0-9a-f]{1,32}")
"""Session ids of agents; the number decides which agent manages a dead one's flush records."""


class UnknownKeys:
    """See the module."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._log = structlog.get_logger()

    def parsed(self, key: str, parse: Callable[[str], T]) -> T | None:
        """What *parse* makes of a key that driftlog writes; None: the key is foreign."""
        try:
            return parse(key)
        except ValueError:
            self.say(key)
            return None

    def say(self, key: str) -> None:
        """Log the foreign *key*, once."""
        if key not in self._told and len(self._told) < _TOLD:
            self._told.add(key)
            self._log.warning(
                "foreign_key_found",
                key=key,
                advice="ignored and not deleted: no driftlog writes this key; delete it or move it",
            )

    def is_ours(self, key: str, parse: Callable[[str], object]) -> bool:
        """Whether driftlog writes *key*; logs a foreign one."""
        return self.parsed(key, parse) is not None

    def decoded(
        self, kvs: Iterable[KeyValue], decode: Callable[[bytes], T], parse: Callable[[str], object]
    ) -> Iterator[T]:
        """Yields the values, without those of foreign keys that cannot be read.

        Raises:
            CorruptError: the value of a driftlog key cannot be read.
        """
        for kv in kvs:
            try:
                yield decode_at(kv.key, kv.value, decode)
            except CorruptError:
                if self.is_ours(kv.key, parse):
                    raise


def head_of(key: str) -> str:
    """The session id in the key of a head.

    Raises:
        ValueError: it is none of an agent's.
    """
    return _checked(parse_head_key(key), key)


def session_of(key: str) -> str:
    """The session id in a session's key.

    Raises:
        ValueError: it is none of an agent's.
    """
    return _checked(parse_session_key(key), key)


def _checked(session_id: str, key: str) -> str:
    if not _SESSION_ID.fullmatch(session_id):
        raise ValueError(f"not a session of an agent: {key!r}")
    return session_id
