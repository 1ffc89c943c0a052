"""The topics that members of a classic group subscribe to, from their metadata.

    ConsumerProtocolSubscription, version 0, a prefix of every later version:

    int16   version
    int32   number of topics, then each: int16 length, UTF-8
    int32   length of the user data (-1: none), bytes

Only members of protocol type "consumer" send this format, and the protocol does not require it:
other bytes mean an unknown subscription, and are no error.  `protocol.consumer_protocol` decodes
later versions in full, and refuses one that ends early; some clients send those.

Source: ConsumerProtocolSubscription.json, ClassicGroup#computeSubscribedTopics.
Pure.
"""

import struct
from collections.abc import Collection, Iterable
from typing import Final

_COUNTED: Final = struct.Struct(">hi")
"""The version and the number of topics."""

_LENGTH_BYTES: Final = 2
"""Bytes of a name's length: no name takes fewer."""


def subscribed_topics(
    metadata: bytes, among: Collection[str] | None = None
) -> frozenset[str] | None:
    """The topics that one member subscribes to; None if *metadata* is no subscription.

    Args:
        among: other topics are left out; None: none is.
    """
    try:
        _, count = _COUNTED.unpack_from(metadata)
        if count < 0:
            return None
        at, topics = _COUNTED.size, set[str]()
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, at)
            end = at + 2 + length
            if length < 0 or end > len(metadata):
                return None
            name = metadata[at + 2 : end].decode()
            if among is None or name in among:
                topics.add(name)
            at = end
        (length,) = struct.unpack_from(">i", metadata, at)
    except (struct.error, UnicodeDecodeError):
        return None
    if length > len(metadata) - at - 4:
        return None
    return frozenset(topics)


def named_topics(metadata: bytes) -> int:
    """The number of topics that *metadata* names, without a look at the names: at most as many as
    fit into it; 0 if it is no subscription."""
    if len(metadata) < _COUNTED.size:
        return 0
    count: int
    _, count = _COUNTED.unpack_from(metadata)
    return max(0, min(count, (len(metadata) - _COUNTED.size) // _LENGTH_BYTES))


def all_subscribed_topics(
    metadata: Iterable[bytes], among: Collection[str] | None = None
) -> frozenset[str] | None:
    """The union of the topics of several members; None if one of them is no subscription."""
    topics: set[str] = set()
    among = None if among is None else frozenset(among)
    for one in metadata:
        subscribed = subscribed_topics(one, among)
        if subscribed is None:
            return None
        topics |= subscribed
    return frozenset(topics)
