"""From annotated message classes to the fields of one version.

`compiler` turns `layout(ProduceRequest, 9)` into functions, and the tests compare it with Kafka's
own definitions: the fields that exist in version 9, in wire order, each with its type, whether it
may be null, its tag and its default.
Pure.
"""

import types
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from driftlog_agents.protocol.types import Blob, Fixed, V


@dataclass(frozen=True, slots=True)
class Array:
    """An array of one type."""

    element: "Type"


@dataclass(frozen=True, slots=True)
class Struct:
    """A message class, or one nested in it."""

    cls: type[Any]


Type = Fixed | Blob | Array | Struct


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message class, over all versions (ranges inclusive)."""

    name: str
    type: Type
    versions: tuple[int, int]
    nullable: tuple[int, int]
    tag: int | None
    default: object
    """The dataclass's default; a fresh list for arrays."""

    def is_in(self, version: int) -> bool:
        """Whether *version* has this field."""
        return self.versions[0] <= version <= self.versions[1]

    def may_be_null(self, version: int) -> bool:
        """Whether *version* has a way to say that this field is null."""
        return self.nullable[0] <= version <= self.nullable[1]


def all_fields(cls: type[Any]) -> tuple[Field, ...]:
    """The fields of a message class in wire order.

    Raises:
        TypeError: an annotation is not a type of `types`.
    """
    known = _fields_of.get(cls)
    if known is None:
        hints = get_type_hints(cls, include_extras=True)
        known = _fields_of[cls] = tuple(
            _field(cls, field.name, hints[field.name], _default(field)) for field in fields(cls)
        )
    return known


_fields_of: Final[dict[type[Any], tuple[Field, ...]]] = {}


def layout(cls: type[Any], version: int) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """The fields that *version* has: the plain ones in wire order, the tagged ones by tag."""
    there = [field for field in all_fields(cls) if field.is_in(version)]
    plain = tuple(field for field in there if field.tag is None)
    tagged = (field for field in there if field.tag is not None)
    return plain, tuple(sorted(tagged, key=lambda field: field.tag or 0))


def is_frozen(cls: type[Any]) -> bool:
    """Whether instances cannot be changed once made: such classes are defaults of tagged fields."""
    return bool(cls.__dataclass_params__.frozen)


def least_bytes(kind: Type, version: int, flexible: bool, nullable: bool = False) -> int:
    """The fewest bytes that a value takes: an array's count is checked against the bytes that are
    left."""
    match kind:
        case Fixed():
            return kind.size
        case Blob():
            return 1 if flexible else {"h": 2, "i": 4}[kind.prefix]
        case Array():
            return 1 if flexible else 4
        case Struct():
            if nullable:
                return 1
            plain, _ = layout(kind.cls, version)
            sizes = (
                least_bytes(field.type, version, flexible, field.may_be_null(version))
                for field in plain
            )
            return sum(sizes) + (1 if flexible else 0)


def _field(cls: type[Any], name: str, hint: object, default: object) -> Field:
    notes = V()
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        notes = next((note for note in metadata if isinstance(note, V)), notes)
        rest = tuple(note for note in metadata if not isinstance(note, V))
        hint = Annotated[inner, *rest] if rest else inner
    hint, optional = _without_none(hint)
    nullable = notes.nullable or (notes.versions if optional else (1, 0))
    if optional != (nullable[0] <= nullable[1]):
        raise TypeError(f"{cls.__name__}.{name}: `| None` and nullable versions disagree")
    return Field(name, _type(cls, name, hint), notes.versions, nullable, notes.tag, default)


def _default(field: Any) -> object:
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    raise TypeError(f"field {field.name} has no default")


def _without_none(hint: object) -> tuple[object, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        if len(members) == 1:
            return members[0], True
    return hint, False


def _type(cls: type[Any], name: str, hint: object) -> Type:
    if get_origin(hint) is Annotated:
        for note in get_args(hint)[1:]:
            if isinstance(note, Fixed | Blob):
                return note
    if get_origin(hint) is list:
        return Array(_type(cls, name, get_args(hint)[0]))
    if isinstance(hint, type) and is_dataclass(hint):
        return Struct(hint)
    raise TypeError(f"{cls.__name__}.{name}: {hint!r} is not a wire type")
