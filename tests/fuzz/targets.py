"""What is fuzzed: functions of bytes, and good inputs for them.

A target returns for input that it accepts and for input that it refuses in the way it
promises; whatever else it raises is a bug.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.errors import CorruptFrameError
from driftlog_agents.protocol.registry import API, decode_request_header
from tests.agents.protocol.random_messages import MessageMaker

AGAIN_BYTES = 8192
"""Longer frames are not encoded again: strings that are not UTF-8 grow when they are replaced,
and might no longer fit."""


@dataclass(frozen=True, slots=True)
class Target:
    """*run* must survive any bytes; *good* makes those that are mutated."""

    run: Callable[[bytes], None]
    good: Callable[[], Sequence[bytes]]


def read_request(frame: bytes) -> None:
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
    if len(frame) < AGAIN_BYTES:
        again = api.encode_request(header.api_version, 0, None, request)
        offset = decode_request_header(again[4:]).body_offset
        assert request == api.decode_request(header.api_version, again[4:], offset)


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


TARGETS: Mapping[str, Target] = {
    "request": Target(read_request, lambda: _good("Request")),
    "response": Target(read_response, lambda: _good("Response")),
}
