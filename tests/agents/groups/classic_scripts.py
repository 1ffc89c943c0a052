"""Transcripts of classic groups: a language for what clients say, and what they are told.

    a > join 5 member=a1 range=A       connection a sends JoinGroup version 5 ...
    a < join gen=1 protocol=range …    ... and is answered, at once or lines later
    wait 500                           half a second in which nothing is sent
    @two                               another transcript's lines are said first, and not shown

A line is the API, the version, then fields.  Member ids have names: the first id that connection
*a* is told is ``a1``, the next ``a2``.  In an answer fields with their default are left out, and
members are in the order of their names: ``id/instance:metadata``, and to who asks for the
description ``id/instance:client:metadata:assignment``.

    join      member instance session rebalance type; then protocol=metadata, in their order
    sync      gen member instance type protocol; then member=assignment
    heartbeat gen member instance
    leave     member/instance …, an empty member id is ``-``
    commit    gen member instance: OffsetCommit of one partition
    describe, delete: no fields

Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from driftlog_agents.protocol.errors import ErrorCode

SESSION_MS: Final = 60_000
REBALANCE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Said:
    """One line that a client says."""

    connection: str
    api: str
    version: int
    fields: Mapping[str, str]
    words: tuple[str, ...]
    """What has no name: members that leave."""

    def number(self, name: str, default: int) -> int:
        return int(self.fields.get(name, default))

    def others(self, *known: str) -> list[tuple[str, bytes]]:
        """Fields whose names are not the language's: protocols, assignments."""
        return [(k, v.encode()) for k, v in self.fields.items() if k not in known]


@dataclass(frozen=True, slots=True)
class Told:
    """One answer: what is not as usual, by name."""

    connection: str
    api: str
    error: ErrorCode
    facts: Mapping[str, str]


class World(Protocol):
    """Somebody who answers: the machine, or a broker.  Member ids are those of its own."""

    def say(self, said: Said) -> None:
        """Send it; return without waiting."""

    def told(self, expected: int) -> Sequence[Told]:
        """Answers since the last call; wait while there are fewer than *expected*."""

    def wait(self, ms: int) -> None:
        """Let time pass."""


@dataclass
class Names:
    """Of member ids."""

    ids: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def id_of(self, name: str) -> str:
        """Of one that was told; else it is made up, and stands for itself."""
        if name == "-":
            return ""
        if name not in self.ids:
            self.names[name] = name
        return self.ids.get(name, name)

    def name_of(self, member_id: str, connection: str) -> str:
        if member_id and member_id not in self.names:
            taken = sum(name.startswith(connection) for name in self.ids)
            name = f"{connection}{taken + 1}"
            self.ids[name], self.names[member_id] = member_id, name
        return self.names.get(member_id, "-")


def parse(line: str) -> Said:
    """A line with a ``>`` in it."""
    connection, _, rest = line.partition(" > ")
    api, version, *words = rest.split()
    pairs = [word.partition("=") for word in words]
    return Said(
        connection.strip(),
        api,
        int(version),
        {name: value for name, equals, value in pairs if equals},
        tuple(name for name, equals, _ in pairs if not equals),
    )


def lines_of(transcript: str) -> list[str]:
    """Without indentation, empty lines and remarks."""
    lines = [line.strip() for line in transcript.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def play(
    transcript: str, world: World, library: Mapping[str, str], names: Names | None = None
) -> list[str]:
    """Say every line to *world*; returns the transcript as *world* writes it."""
    names = names or Names()
    written: list[str] = []
    lines = lines_of(transcript)
    for at, line in enumerate(lines):
        if " < " in line:
            continue
        written.append(line)
        if line.startswith("@"):
            begun = library[line[1:]]
            assert lines_of(begun) == play(begun, world, library, names)
        else:
            written += _step(line, world, names, _answers_after(lines, at))
    return written


def _answers_after(lines: list[str], at: int) -> int:
    count = 0
    while at + count + 1 < len(lines) and " < " in lines[at + count + 1]:
        count += 1
    return count


def _step(line: str, world: World, names: Names, expected: int) -> list[str]:
    if line.startswith("wait "):
        world.wait(int(line.split()[1]))
    else:
        said = parse(line)
        fields = {_named(names, k): _named(names, v, k) for k, v in said.fields.items()}
        words = tuple("/".join(_named_word(names, word)) for word in said.words)
        world.say(Said(said.connection, said.api, said.version, fields, words))
    told = sorted(world.told(expected), key=lambda told: (told.connection, told.api))
    for one in told:  # names are given before any list of members is written
        if "member" in one.facts:
            names.name_of(one.facts["member"], one.connection)
    return [_written(one, names) for one in told]


def _named(names: Names, text: str, field_name: str | None = None) -> str:
    """Names of members become their ids: in a field's name, or as the value of ``member``."""
    if field_name is None:
        return names.ids.get(text, text)
    return names.id_of(text) if field_name == "member" else text


def _named_word(names: Names, word: str) -> Iterable[str]:
    member, slash, instance = word.partition("/")
    return (names.id_of(member), instance) if slash else (names.id_of(member),)


def _written(told: Told, names: Names) -> str:
    words = [told.connection, "<", told.api]
    if told.error:
        words.append(told.error.name)
    for name, value in told.facts.items():
        if name in ("member", "leader"):
            value = names.name_of(value, told.connection)
            if value == "-":
                continue
        if name == "members":
            value = ",".join(sorted(_member_written(one, names, told) for one in value.split(",")))
        words.append(name if value == "True" else f"{name}={value}")
    return " ".join(words)


def _member_written(one: str, names: Names, told: Told) -> str:
    member_id, rest = one.split("|", 1)
    return names.name_of(member_id, told.connection) + rest


def member_fact(member_id: str, instance_id: str | None, rest: str) -> str:
    """One of several members: its id comes first, for `play` to name it."""
    return f"{member_id}|{'/' + instance_id if instance_id else ''}:{rest}"


def described_fact(
    member_id: str, instance_id: str | None, client: tuple[str, str], says: tuple[bytes, bytes]
) -> str:
    """One member of DescribeGroups; its host if that is not this one."""
    client_id, host = client
    metadata, assignment = (said.decode() for said in says)
    at = "" if host == "/127.0.0.1" else f"@{host}"
    return member_fact(member_id, instance_id, f"{client_id}{at}:{metadata}:{assignment}")


def facts(**values: object) -> dict[str, str]:
    """Without what is as usual: None, empty."""
    return {name: _text(v) for name, v in values.items() if v not in (None, "", b"", (), False)}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
