"""The consumer protocol against itself, against kio, and against what is cut off."""

import importlib
import io
import re
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from driftlog_agents.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
    encode_subscription,
)
from driftlog_agents.protocol.errors import CorruptFrameError
from tests.agents.protocol.random_messages import MessageMaker

CODECS: list[tuple[type[Any], Any, Any]] = [
    (ConsumerProtocolSubscription, encode_subscription, decode_subscription),
    (ConsumerProtocolAssignment, encode_assignment, decode_assignment),
]
SEEDS = range(12)

ALL = pytest.mark.parametrize(("cls", "encode", "decode"), CODECS)
EVERY_VERSION = pytest.mark.parametrize("version", range(4))


@ALL
@EVERY_VERSION
def test_what_is_written_is_read_back(
    cls: type[Any], encode: Any, decode: Any, version: int
) -> None:
    """
    Decoding gives what was encoded; it begins with its version; what follows is ignored.
    """
    for seed in SEEDS:
        sent = MessageMaker(seed).message(cls, version)
        data = encode(version, sent)

        assert version == decode_version(data)
        assert sent == decode(data)
        assert sent == decode(memoryview(data + b"\x01\xff"))


@ALL
@EVERY_VERSION
def test_kio_agrees(cls: type[Any], encode: Any, decode: Any, version: int) -> None:
    """
    kio reads what we wrote, all of it, and writes the same bytes.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
    entity = getattr(importlib.import_module(f"kio.schema.{words}.v{version}.data"), cls.__name__)

    for seed in SEEDS:
        body = encode(version, MessageMaker(seed).message(cls, version))[2:]

        seen, size = entity_reader(entity)(body, 0)
        written = io.BytesIO()
        entity_writer(entity)(written, seen)

        assert len(body) == size
        assert body == written.getvalue()


@ALL
def test_a_later_version_is_read_as_the_latest_that_is_known(
    cls: type[Any], encode: Any, decode: Any
) -> None:
    """
    Fields of later versions come behind those that we know.
    """
    sent = MessageMaker(1).message(cls, 3)
    data = encode(3, sent)

    assert sent == decode(b"\x00\x07" + data[2:] + b"something new")


@ALL
@EVERY_VERSION
def test_what_is_cut_off_is_refused(cls: type[Any], encode: Any, decode: Any, version: int) -> None:
    """
    No proper prefix can be read, nor can a negative version.
    """
    for seed in SEEDS:
        data = encode(version, MessageMaker(seed).message(cls, version))
        for end in range(min(len(data), 300)):
            with pytest.raises(CorruptFrameError):
                decode(data[:end])
    with pytest.raises(CorruptFrameError, match="version -1"):
        decode(b"\xff\xff" + data[2:])
