"""Every codec against itself and against two codecs that we did not write.

Random messages from seeds: each API, each version, requests and responses.
"""

import importlib
import io
import re
from dataclasses import is_dataclass
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest
from kafka.protocol.data_container import DataContainer
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from driftlog_agents.protocol.api import Api
from driftlog_agents.protocol.errors import CorruptFrameError
from driftlog_agents.protocol.messages.api_versions import ApiVersionsResponse
from driftlog_agents.protocol.requests.registry import API, decode_request_header
from driftlog_agents.protocol.schema import Field, Struct, all_fields
from driftlog_agents.protocol.types import NULL_UUID
from tests.agents.protocol.random_messages import MessageMaker

MESSAGES_PER_VERSION = 12

NOT_IN_KAFKA_PYTHON = {
    "ConsumerGroupDescribe",
    "ConsumerGroupHeartbeat",
    "DescribeDelegationToken",
    "UnregisterBroker",
}

CODECS = [
    pytest.param(api, kind, version, id=f"{api.name}{kind}-v{version}")
    for api in API.values()
    for kind in ("Request", "Response")
    for version in api.versions
]


@pytest.mark.parametrize(("api", "kind", "version"), CODECS)
def test_what_is_written_is_read_back(api: Api[Any, Any], kind: str, version: int) -> None:
    """
    Decoding an encoded message gives an equal one; a frame says its size; bytes behind the
    body change nothing, as in Kafka.
    """
    for seed in range(MESSAGES_PER_VERSION):
        sent = MessageMaker(seed).message(_class(api, kind), version)
        frame = _encode(api, kind, version, sent)

        assert len(frame) - 4 == int.from_bytes(frame[:4], "big")
        assert sent == _decode(api, kind, version, frame[4:])
        assert sent == _decode(api, kind, version, frame[4:] + b"\x01\xff")


@pytest.mark.parametrize(("api", "kind", "version"), CODECS)
def test_kafka_python_agrees(api: Api[Any, Any], kind: str, version: int) -> None:
    """
    kafka-python reads what we wrote, holds the same values in the same order, and writes
    the same bytes, which we read as the same message.
    """
    oracle = _kafka_python_class(api, kind)
    if oracle is None:
        assert api.name in NOT_IN_KAFKA_PYTHON
        return
    for seed in range(MESSAGES_PER_VERSION):
        sent = MessageMaker(seed).message(_class(api, kind), version)
        if isinstance(sent, ApiVersionsResponse):
            # It reads one with an error as version 0, whatever version it is.
            sent.error_code = 0
        frame = _encode(api, kind, version, sent)

        seen = oracle.decode(frame, version=version, header=True, framed=True)
        seen._header = None  # noqa: SLF001  # kafka-python's: it keeps it from `decode` on
        again = frame[: _body(api, kind, version)] + bytes(seen.encode(version=version))

        assert _values(sent, version) == _values_of_kafka_python(seen, version)
        assert frame == again
        assert sent == _decode(api, kind, version, again[4:])


@pytest.mark.parametrize(("api", "kind", "version"), CODECS)
def test_kio_agrees(api: Api[Any, Any], kind: str, version: int) -> None:
    """
    kio reads what we wrote, all of it, and writes the same bytes.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", api.name).lower()
    module = importlib.import_module(f"kio.schema.{words}.v{version}.{kind.lower()}")
    entity = getattr(module, f"{api.name}{kind}")
    read, write = entity_reader(entity), entity_writer(entity)
    codes = tuple(int(code) for code in KioErrorCode)

    for seed in range(MESSAGES_PER_VERSION):
        # Tame: kio holds codes as an enum and times as datetimes.
        maker = MessageMaker(seed, tame=True, error_codes=codes)
        sent = maker.message(_class(api, kind), version)
        body = _encode(api, kind, version, sent)[_body(api, kind, version) :]

        seen, size = read(body, 0)
        written = io.BytesIO()
        write(written, seen)

        assert len(body) == size
        assert body == written.getvalue()


@pytest.mark.parametrize(("api", "kind", "version"), CODECS)
def test_what_is_cut_off_is_refused(api: Api[Any, Any], kind: str, version: int) -> None:
    """
    No proper prefix of a frame can be read.
    """
    for seed in range(5):
        frame = _encode(api, kind, version, MessageMaker(seed).message(_class(api, kind), version))
        # What is not served has no header that we read.
        start = 4 if kind == "Response" or version in api.served else _body(api, kind, version)
        for end in range(start, min(len(frame), 300)):
            with pytest.raises(CorruptFrameError):
                _decode(api, kind, version, frame[4:end])


@pytest.mark.parametrize(("api", "kind", "version"), CODECS)
def test_unknown_tagged_fields_are_skipped(api: Api[Any, Any], kind: str, version: int) -> None:
    """
    A newer sender may add tagged fields to a message (KIP-482): what we know is read all the same.
    """
    if not api.is_flexible(version):
        return  # No such fields before.
    sent = _class(api, kind)()
    frame = _encode(api, kind, version, sent)
    assert frame.endswith(b"\0"), "no tagged fields of our own"

    more = frame[:-1] + b"\x02" + b"\x63\x03abc" + b"\xff\xff\xff\xff\x0f\x00"

    assert sent == _decode(api, kind, version, more[4:])


# ── Help ──


def _class(api: Api[Any, Any], kind: str) -> type[Any]:
    return api.request if kind == "Request" else api.response


def _encode(api: Api[Any, Any], kind: str, version: int, message: Any) -> bytes:
    if kind == "Request":
        return api.encode_request(version, 7, "client-ä", message)
    return api.encode_response(version, 7, message)


def _body(api: Api[Any, Any], kind: str, version: int) -> int:
    """Where the body of a frame of `_encode` begins."""
    if kind == "Request":
        return 4 + 8 + 2 + len("client-ä".encode()) + (1 if api.is_flexible(version) else 0)
    return 4 + 4 + (1 if api.has_response_tags(version) else 0)


def _decode(api: Api[Any, Any], kind: str, version: int, frame: bytes) -> Any:
    if kind == "Response":
        correlation_id, response = api.decode_response(version, frame)
        assert correlation_id == 7
        return response
    if version in api.served:
        header = decode_request_header(frame)
        assert (header.api_key, header.api_version) == (api.key, version)
        assert (header.correlation_id, header.client_id) == (7, "client-ä")
        return api.decode_request(version, frame, header.body_offset)
    return api.decode_request(version, frame, _body(api, kind, version) - 4)


def _kafka_python_class(api: Api[Any, Any], kind: str) -> Any:
    for module in (
        kafka.protocol.admin,
        kafka.protocol.consumer,
        kafka.protocol.metadata,
        kafka.protocol.producer,
        kafka.protocol.sasl,
    ):
        found = getattr(module, f"{api.name}{kind}", None)
        if found is not None:
            return found
    return None


def _values(value: Any, version: int) -> Any:
    """Our message without its names: nested lists in wire order, as kafka-python holds them."""
    if isinstance(value, list):
        return [_values(item, version) for item in value]
    if is_dataclass(value):
        there = [field for field in all_fields(type(value)) if field.is_in(version)]
        return [_value(field, getattr(value, field.name), version) for field in there]
    if value == NULL_UUID:
        return None
    return bytes(value) if isinstance(value, memoryview) else value


def _value(field: Field, value: Any, version: int) -> Any:
    if isinstance(field.type, Struct) and field.tag is not None and value == field.default:
        return None
    return _values(value, version)


def _values_of_kafka_python(value: Any, version: int) -> Any:
    if isinstance(value, list):
        return [_values_of_kafka_python(item, version) for item in value]
    if isinstance(value, DataContainer):
        fields = value._struct._fields  # noqa: SLF001  # kafka-python lists them nowhere else
        there = [field for field in fields if field.for_version_q(version)]
        return [
            _value_of_kafka_python(field.name, getattr(value, field.name), version)
            for field in there
        ]
    return value


def _value_of_kafka_python(name: str, value: Any, version: int) -> Any:
    if name.endswith("authorized_operations"):  # In most messages a set of bits, or None.
        if value is None:
            return -(1 << 31)
        if isinstance(value, set):
            return sum(1 << bit for bit in value)
    return _values_of_kafka_python(value, version)
