"""Every codec against Kafka's own generated Java classes, where there are Java and their jar.

One JVM reads and writes all messages; see KafkaOracle.java.
"""

import functools
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from driftlog_agents.protocol.api import Api
from driftlog_agents.protocol.errors import CorruptFrameError
from driftlog_agents.protocol.requests.registry import API
from tests.agents.protocol.kafka_definitions import jar
from tests.agents.protocol.random_messages import MessageMaker
from tests.fuzz.mutation import mutated

Line = tuple[Api[Any, Any], str, int, bytes]

MESSAGES_PER_VERSION = 12


def test_kafka_reads_and_writes_the_same_bytes() -> None:
    """
    Kafka 4.3.1's classes read the body of every API, version and direction to its end, and
    write it as we did.
    """
    lines = list(_lines())

    answers = _ask(lines)

    different = [
        (api.name, kind, version, answer)
        for (api, kind, version, body), answer in zip(lines, answers, strict=True)
        if answer != f"{body.hex()} 0"
    ]
    assert [] == different


def test_what_kafka_refuses_we_refuse() -> None:
    """
    Of mutated bodies, Kafka's readers and ours accept the same ones and see the same in them,
    but for tagged fields, as `_argued` says.
    """
    rng = random.Random(5)
    lines = [
        (api, kind, version, mutated([body], rng))
        for api, kind, version, body in _lines()
        for _ in range(6)
    ]

    answers = _ask(lines)

    different = [
        (line[0].name, *line[1:], theirs)
        for line, theirs in zip(lines, answers, strict=True)
        if not _agrees(line, theirs)
    ]
    assert [] == different
    assert 1000 < sum(answer.startswith("refused") for answer in answers) < len(answers) - 1000


def _agrees(line: Line, theirs: str) -> bool:
    api, kind, version, body = line
    ours, why = _again(api, kind, version, body)
    if theirs.startswith("refused"):
        return ours is None or any(argued in theirs for argued in LATE_REFUSALS)
    if ours is None:
        return api.is_flexible(version) and ("tag" in why or NEGATIVE.search(body) is not None)
    written = bytes.fromhex(theirs.partition(" ")[0])
    if ours == written or SURROGATE.search(body):
        return True
    # Kafka keeps tagged fields that it does not know, and writes them again: we drop them.
    return api.is_flexible(version) and ours == _again(api, kind, version, written)[0]


LATE_REFUSALS = (
    # Said when it writes what it has read; senders must sort tags, readers do not care.
    "Invalid raw tag field list",
    # A tag of a later version, used too early: for us one more that we do not know.
    "is not valid for version",
)

SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")
"""Half a surrogate is not UTF-8: Java reads one replacement character there, and Python two."""

NEGATIVE = re.compile(rb"[\x80-\xff]{4}[\x08-\x7f]")
"""A varint above 2^31 is a negative int in Java: as many tagged fields, or as long a one, are
none to Kafka, and cut off to us.  Nor does it look whether a known one has the size that it
claims: ours are refused with a word about a tag."""


@functools.cache
def _lines() -> tuple[Line, ...]:
    return tuple(
        (api, kind, version, _body(api, kind, version, seed))
        for api in API.values()
        for kind in ("Request", "Response")
        for version in api.versions
        for seed in range(MESSAGES_PER_VERSION)
    )


def _body(api: Api[Any, Any], kind: str, version: int, seed: int) -> bytes:
    maker = MessageMaker(seed)
    if kind == "Request":
        request = maker.message(api.request, version)
        return api.encode_request(version, 0, None, request)[14 + api.is_flexible(version) :]
    response = maker.message(api.response, version)
    return api.encode_response(version, 0, response)[8 + api.has_response_tags(version) :]


def _again(api: Api[Any, Any], kind: str, version: int, body: bytes) -> tuple[bytes | None, str]:
    """The body read and written by us; None and why if we refuse it."""
    try:
        if kind == "Request":
            request = api.decode_request(version, body)
            offset = 14 + api.is_flexible(version)
            return api.encode_request(version, 0, None, request)[offset:], ""
        tags = api.has_response_tags(version)
        _, response = api.decode_response(version, bytes(4 + tags) + body)
        return api.encode_response(version, 0, response)[8 + tags :], ""
    except CorruptFrameError as error:
        return None, str(error)


def _ask(lines: list[Line]) -> list[str]:
    """What Kafka makes of bodies: "hex unread", or "refused why"."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("no java: Kafka's own classes cannot be asked")
    source = Path(__file__).with_name("KafkaOracle.java")
    asked = "".join(
        f"{api.key.value} {kind} {version} {body.hex()}\n" for api, kind, version, body in lines
    )
    done = subprocess.run(
        [java, "-XX:TieredStopAtLevel=1", "-cp", str(jar()), str(source)],
        input=asked,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
