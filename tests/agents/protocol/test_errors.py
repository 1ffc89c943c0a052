"""Error codes against those of a codec that was generated from Kafka's."""

import zipfile

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from tests.agents.protocol.kafka_definitions import jar


def test_error_codes_are_kafkas() -> None:
    """
    Numbers, names and which ones clients retry.
    """
    theirs = {int(code): (code.name.upper(), code.retriable) for code in KioErrorCode}

    assert theirs == {int(code): (code.name, code.retriable) for code in ErrorCode}


def test_every_name_is_in_kafkas_own_enum() -> None:
    """
    Kafka 4.3.1's class file has each of our names, and we have each that it counts.
    """
    with zipfile.ZipFile(jar()) as archive:
        names = archive.read("org/apache/kafka/common/protocol/Errors.class")

    assert [] == [code.name for code in ErrorCode if code.name.encode() not in names]
    assert list(range(-1, 134)) == sorted(ErrorCode)


def test_a_refusal_has_a_reason() -> None:
    """
    A code that means success cannot be raised.
    """
    assert "INVALID_TOPIC_EXCEPTION: ." == str(RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, "."))
    with pytest.raises(AssertionError):
        RefusedError(ErrorCode.NONE)
