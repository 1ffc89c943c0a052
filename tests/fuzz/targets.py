"""What is fuzzed: functions of bytes, and good inputs for them.

    connection   what a socket brings: whole streams through framing, decoders and the batch check
    request      one frame, decoded as an agent does
    response     one frame, decoded as a client does
    section      the compressed records of a batch, in one or more frames

A target returns for input that it accepts and for input that it refuses in the way it
promises; whatever else it raises is a bug.
"""

import functools
import random
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from driftlog_agents.network.frames import LARGE_BYTES, FrameReader
from driftlog_agents.network.limits.memory_budget import MemoryBudget
from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.errors import CorruptFrameError
from driftlog_agents.protocol.messages import produce
from driftlog_agents.protocol.requests.registry import API, decode_request_header
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import Codec, CorruptRecordsError
from driftlog_tiering.batches.compression import compress, decompress
from driftlog_tiering.stores.buffer_pool import BufferPool
from tests.agents.protocol.random_messages import MessageMaker
from tests.simulation.batches import make_batch

AGAIN_BYTES = 8192
"""Longer frames are not encoded again: strings that are not UTF-8 grow when they are replaced,
and might no longer fit."""


@dataclass(frozen=True, slots=True)
class Target:
    """*run* must survive any bytes; *good* makes those that are mutated."""

    run: Callable[[bytes], None]
    good: Callable[[], Sequence[bytes]]


REQUEST_MAX_BYTES: Final = 100 << 20
"""The default of socket.request.max.bytes: what mutated sizes announce must not be believed."""

TRUSTED_BYTES: Final = 2 << 20
"""What a connection may hold for a frame that is only announced."""

SECTION_BYTES: Final = 2 << 20
"""Limit of decompressed records here: 2 million objects in place of them would show."""

_shared = memoryview(bytearray(256 * 1024))
_pool = BufferPool(16 << 20)


def read_connection(stream: bytes) -> None:
    """Take a stream in pieces, as a socket brings it, and every frame as an agent does.

    The frames are those that a plain loop finds in the whole stream, and memory stays in
    proportion to what was received, whatever was announced.

    Raises:
        Anything but CorruptFrameError: a bug.
    """
    wanted, refused = _plain_frames(stream)
    budget = MemoryBudget(256 << 20)
    reader = FrameReader(REQUEST_MAX_BYTES, _shared, _pool, budget)
    seen = 0
    try:
        for piece in _pieces(stream):
            at = 0
            while at < len(piece):
                buffer = reader.buffer()
                size = min(len(buffer), len(piece) - at)
                buffer[:size] = piece[at : at + size]
                at += size
                for frame in reader.received(size):
                    assert seen < len(wanted), "a frame that nobody sent"
                    assert frame == wanted[seen], "a frame that is not what was sent"
                    seen += 1
                    read_request(frame)
                reader.taken()
            assert reader.buffered_bytes <= TRUSTED_BYTES + 5 * len(stream)
            assert reader.buffered_bytes == budget.held_bytes, "held and not counted"
    except CorruptFrameError:
        assert refused
        return
    assert not refused, "a size that no frame may have was taken"
    assert seen == len(wanted), "a frame that is complete was kept"


def _plain_frames(stream: bytes) -> tuple[list[memoryview], bool]:
    """The frames of *stream*, and whether a size that is no frame's stands behind them."""
    view, at = memoryview(stream), 0
    frames: list[memoryview] = []
    while len(stream) - at >= 4:
        (size,) = struct.unpack_from(">i", stream, at)
        if not 8 <= size <= REQUEST_MAX_BYTES:
            return frames, True
        if len(stream) - at - 4 < size:
            break
        frames.append(view[at + 4 : at + 4 + size])
        at += 4 + size
    return frames, False


def _pieces(stream: bytes) -> list[memoryview]:
    """*stream* whole or cut up to five times: where, its bytes say."""
    view = memoryview(stream)
    rng = random.Random(zlib.crc32(stream))
    inner = [rng.randrange(len(stream) + 1) for _ in range(rng.choice((0, 1, 2, 5)))]
    cuts = [0, *sorted(inner), len(stream)]
    return [view[start:end] for start, end in pairwise(cuts)]


def read_request(frame: bytes | memoryview) -> None:
    """Decode as an agent does.  What was understood can be said again, and means the same.

    Raises:
        Anything but CorruptFrameError: a bug.
    """
    try:
        header = decode_request_header(frame)
        api = API[header.api_key]
        if header.api_version not in api.served:
            assert header.api_key == ApiKey.API_VERSIONS, "only it is answered when unknown"
            return
        request = api.decode_request(header.api_version, frame, header.body_offset)
    except CorruptFrameError:
        return
    if isinstance(request, produce.ProduceRequest):
        _check_batches(request)
    if len(frame) < AGAIN_BYTES:
        again = api.encode_request(header.api_version, 0, None, request)
        offset = decode_request_header(again[4:]).body_offset
        assert request == api.decode_request(header.api_version, again[4:], offset)


def _check_batches(request: produce.ProduceRequest) -> None:
    """As the Produce handler does: a batch is taken or refused for a reason, and never raises."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records:
                kernel.check(data.records, 0, len(data.records))


def read_response(data: bytes) -> None:
    """Decode as a client does: the API key and the version in a byte each, then the frame."""
    if len(data) < 2 or data[0] not in API or data[1] not in API[data[0]].versions:
        return
    api, version = API[data[0]], data[1]
    try:
        _, response = api.decode_response(version, data[2:])
    except CorruptFrameError:
        return
    if len(data) < AGAIN_BYTES:
        again = api.encode_response(version, 0, response)
        assert response == api.decode_response(version, again[4:])[1]


def read_section(data: bytes) -> None:
    """Decompress as an agent does: the codec in a byte, then the records.

    Raises:
        Anything but CorruptRecordsError: a bug.
    """
    if data and data[0] < len(Codec):
        try:
            out = decompress(Codec(data[0]), memoryview(data)[1:], SECTION_BYTES)
        except CorruptRecordsError:
            return
        assert len(out) <= SECTION_BYTES, "more than was allowed"


@functools.cache
def _good_sections() -> Sequence[bytes]:
    """Of every codec: one frame and several, of which some are empty, and a bomb."""
    sections = []
    for codec in Codec:
        little = bytes(compress(codec, b"a record, and another record " * 40))
        empty, bomb = bytes(compress(codec, b"")), bytes(compress(codec, bytes(SECTION_BYTES - 1)))
        several = (little, empty + little, little + empty, empty * 50 + little, little * 3)
        sections += [bytes([codec]) + each for each in several] * 16  # bombs take milliseconds
        if codec is not Codec.NONE:
            sections += [bytes([codec]) + bomb, bytes([codec]) + empty + bomb]
    return sections


@functools.cache
def _good(kind: str) -> Sequence[bytes]:
    return [
        frame
        for api in API.values()
        for version in (api.served if kind == "Request" else api.versions)
        for frame in _frames(api, kind, version)
    ]


def _frames(api: Api[Any, Any], kind: str, version: int) -> list[bytes]:
    frames = []
    for seed in range(6):
        message = MessageMaker(seed).message(
            api.request if kind == "Request" else api.response, version
        )
        if kind == "Request":
            frames.append(api.encode_request(version, seed, "fuzz", message)[4:])
        else:
            encoded = api.encode_response(version, seed, message)[4:]
            frames.append(bytes([api.key, version]) + encoded)
    return frames


@functools.cache
def _good_streams() -> Sequence[bytes]:
    """One to four requests behind each other; some of real batches, some of large ones."""
    rng = random.Random(1)
    small = [struct.pack(">i", len(frame)) + frame for frame in _good("Request")]
    large = [_produce(version, size) for version, size in ((3, LARGE_BYTES), (9, 100_000))]
    batches = [_produce(version, size) for version in produce.API.served for size in (1, 100, 2000)]
    streams = [*small, *large]
    for first in batches * 4 + small:
        streams.append(b"".join([first, *rng.choices(small, k=rng.randrange(4))]))
    streams += [large[0] + rng.choice(small), rng.choice(small) + large[1]]
    return streams


def _produce(version: int, value_bytes: int) -> bytes:
    data = produce.PartitionProduceData(
        index=1,
        records=memoryview(make_batch([b"v" * value_bytes], timestamp_ms=1_700_000_000_000)),
    )
    request = produce.ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[produce.TopicProduceData(name="topic", partition_data=[data])],
    )
    return produce.API.encode_request(version, 7, "fuzz", request)


TARGETS: Mapping[str, Target] = {
    "connection": Target(read_connection, _good_streams),
    "request": Target(read_request, lambda: _good("Request")),
    "response": Target(read_response, lambda: _good("Response")),
    "section": Target(read_section, _good_sections),
}
