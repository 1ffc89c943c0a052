"""One decoder and one encoder per message and version, written out as straight-line Python.

The functions are put together as source text and compiled once, as `dataclasses` makes an
``__init__``: one function per message, nested structs inlined as loops, consecutive fixed-size
fields (and the lengths that follow them) in one `struct.Struct`, and no call per field.  The text
has nothing from the wire; it is the docstring of the compiled function.

    decode(buffer: memoryview, at: int, end: int, elements: int, tagged: int) -> message
    encode(message, out: bytearray, cuts: list[(position in out, records)], most) -> None

An encoder stops at the element with which *out* has more than *most* bytes.  Records are not
written into *out*: *cuts* says where they belong, so that a fetched batch goes from where it lies
to the socket without being copied.
Pure.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from driftlog_agents.protocol.errors import (
    ELEMENTS,
    TAGGED_FIELDS,
    CorruptFrameError,
    OverLimitError,
    answer_too_large,
)
from driftlog_agents.protocol.schema import (
    Array,
    Field,
    Struct,
    Type,
    all_fields,
    is_frozen,
    layout,
    least_bytes,
)
from driftlog_agents.protocol.types import (
    LONG_STRING_BYTES,
    MAX_STRING_BYTES,
    VARINTS,
    Blob,
    Fixed,
    encode_varint,
    long_string,
    records_size,
    skip_tagged_fields,
    uuid_of,
    varint_tail,
)

Cuts = list[tuple[int, Any]]
Decode = Callable[[memoryview, int, int, int, int], Any]
Encode = Callable[[Any, bytearray, Cuts, int], None]

_MAX_MESSAGE_CHARS: Final = MAX_STRING_BYTES // 4


def compile_decoder(cls: type[Any], version: int, flexible: bool) -> Decode:
    """The function that reads *version* of a message.

    Its last two arguments limit the elements of all arrays together, and the unknown tagged fields.
    It may raise IndexError and struct.error at the end of its buffer and CorruptFrameError for all
    else; `api` makes them one error.  Bytes of strings that are not UTF-8 are replaced, as in Java
    (``new String(bytes, UTF_8)``).  Bytes after the message are ignored, as in
    RequestContext#parseRequest of Kafka 4.3.1.
    """
    writer = _DecoderWriter(version, flexible)
    message = writer.struct(cls)
    writer.line(f"return {message}")
    return writer.compile("decode(b, p, n, m, q)", f"{cls.__name__} v{version} decoder")


def compile_encoder(cls: type[Any], version: int, flexible: bool) -> Encode:
    """The function that writes *version* of a message.

    Fields that *version* does not have are left out, whatever they hold.  It raises OverLimitError
    before an element of an array when there are more bytes than its last argument.
    """
    writer = _EncoderWriter(version, flexible)
    writer.struct("o", cls, "w")
    writer.line("return")
    return writer.compile("encode(o, w, c, m)", f"{cls.__name__} v{version} encoder")


class _Writer:
    """The lines of one function, its constants, and a run of fixed-size items to be flushed."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.text: list[str] = []
        self.names: dict[str, Any] = {}
        self.run: list[tuple[str, str]] = []
        self._depth = 1
        self._fresh = 0

    def line(self, text: str) -> None:
        assert not self.run, "a run must be flushed before anything that comes after it"
        self.aside(text)

    def aside(self, text: str) -> None:
        """Add a line that may go before the run: it neither reads nor writes the wire."""
        self.text.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        assert not self.run, "a run must not outlive its block"
        self._depth -= 1

    def fresh(self, prefix: str) -> str:
        self._fresh += 1
        return f"{prefix}{self._fresh}"

    def constant(self, prefix: str, value: object) -> str:
        for name, known in self.names.items():
            if known is value:
                return name
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def compile(self, signature: str, title: str) -> Callable[..., Any]:
        source = "\n".join([f"def {signature}:", *self.text, ""])
        namespace = dict(self.names)
        exec(compile(source, f"<{title}>", "exec"), namespace)  # source: message definitions alone
        function = namespace[signature.partition("(")[0]]
        function.__doc__ = source
        return function  # type: ignore[no-any-return]


class _DecoderWriter(_Writer):
    """Locals: ``b`` the buffer, ``p`` the position, ``n`` the end; ``m`` elements and ``q`` tagged
    fields are still allowed."""

    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__(version, flexible)
        self.names |= {
            "new": object.__new__,
            "Corrupt": CorruptFrameError,
            "OverLimit": OverLimitError,
            "long_string": long_string,
            "varint": varint_tail,
            "skip": skip_tagged_fields,
            "unpack_from": struct.unpack_from,
            "uuid": uuid_of,
        }

    def flush(self) -> None:
        """Read the run of fixed-size items with one call, or by index if it is one byte."""
        run, self.run = self.run, []
        if not run:
            return
        formats = ">" + "".join(code for code, _ in run)
        targets = ", ".join(target for _, target in run)
        if formats == ">B":
            self.line(f"{targets} = b[p]")
        else:
            unpack = self.constant("unpack", struct.Struct(formats).unpack_from)
            self.line(f"{targets}, = {unpack}(b, p)")
        self.line(f"p += {struct.calcsize(formats)}")

    def length(self, prefix: str) -> str:
        """Read a length or a count; returns the local that holds it: < 0 for null."""
        local = self.fresh("k")
        self.run.append(("B" if self.flexible else prefix, local))
        self.flush()
        if self.flexible:
            self.line(f"if {local} > 127: {local}, p = varint(b, p, {local})")
            self.line(f"{local} -= 1")
        return local

    def struct(self, cls: type[Any]) -> str:
        """Read a struct; returns the local that holds it."""
        made = self.fresh("o")
        frozen = is_frozen(cls)
        dot = "_" if frozen else "."
        if not frozen:
            self.aside(f"{made} = new({self.constant('C', cls)})")
        plain, tagged = layout(cls, self.version)
        for field in all_fields(cls):
            if field not in plain:
                self.aside(f"{made}{dot}{field.name} = {self.default(field)}")
        for field in plain:
            self.value(field.type, f"{made}{dot}{field.name}", field.may_be_null(self.version))
        if self.flexible:
            self.tagged_fields(tagged, made + dot)
        self.flush()
        if frozen:
            arguments = ", ".join(f"{f.name}={made}_{f.name}" for f in all_fields(cls))
            self.line(f"{made} = {self.constant('C', cls)}({arguments})")
        return made

    def default(self, field: Field) -> str:
        match field.default:
            case list():
                return "[]"
            case None | bool() | int() | str() as literal:
                return repr(literal)
            case constant:
                return self.constant("D", constant)

    def tagged_fields(self, tagged: tuple[Field, ...], owner: str) -> None:
        count = self.fresh("t")
        self.run.append(("B", count))
        self.flush()
        if not tagged:
            self.line(f"if {count}: p, q = skip(b, p, n, {count}, q)")
            return
        tag, size, stop = self.fresh("g"), self.fresh("z"), self.fresh("e")
        with self.block(f"if {count}:"):
            self.line(f"if {count} > 127: {count}, p = varint(b, p, {count})")
            message = "too many tagged fields"
            raised = f"raise OverLimit({TAGGED_FIELDS!r}, {message!r})"
            self.line(f"if (q := q - {count}) < 0: {raised}")
            with self.block(f"for _ in range({count}):"):
                for local in (tag, size):
                    self.line(f"{local} = b[p]; p += 1")
                    self.line(f"if {local} > 127: {local}, p = varint(b, p, {local})")
                self.line(f"{stop} = p + {size}")
                self.line(f"if {stop} > n: raise Corrupt('a tagged field ends behind its frame')")
                for field in tagged:
                    with self.block(f"if {tag} == {field.tag}:"):
                        nullable = field.may_be_null(self.version)
                        self.value(field.type, owner + field.name, nullable)
                        self.flush()
                        message = f"{field.name} is not as long as its tagged field"
                        self.line(f"if p != {stop}: raise Corrupt({message!r})")
                        self.line("continue")
                self.line(f"p = {stop}")

    def value(self, kind: Type, target: str, nullable: bool) -> None:
        """Read a value into *target*, or add it to the run."""
        match kind:
            case Fixed(name="uuid"):
                local = self.fresh("u")
                self.run.append((kind.format, local))
                self.flush()
                self.line(f"{target} = uuid({local})")
            case Fixed():
                self.run.append((kind.format, target))
            case Blob():
                with self.unless_null(self.length(kind.prefix), target, nullable) as length:
                    self.blob(kind, target, length)
            case Array():
                with self.unless_null(self.length("i"), target, nullable) as count:
                    self.array(kind.element, target, count)
            case Struct() if nullable:
                present = self.fresh("k")
                self.run.append(("b", present))
                self.flush()
                with self.unless_null(present, target, nullable):
                    self.line(f"{target} = {self.struct(kind.cls)}")
            case Struct():
                made = self.struct(kind.cls)
                self.line(f"{target} = {made}")

    @contextmanager
    def unless_null(self, length: str, target: str, nullable: bool) -> Iterator[str]:
        if not nullable:  # The reader of the value refuses a negative length.
            yield length
            return
        self.line(f"if {length} < 0: {target} = None")
        with self.block("else:"):
            yield length
            self.flush()

    def blob(self, kind: Blob, target: str, length: str) -> None:
        name = target.partition(".")[2] or target
        stop = self.fresh("e")
        self.line(f"{stop} = p + {length}")
        limit = f" or {length} > {kind.most_bytes}" if kind.name == "string" else ""
        message = f"{name} is null or too long"
        self.line(f"if {length} < 0 or {stop} > n{limit}: raise Corrupt({message!r})")
        match kind.name:
            case "string":
                text = f"str(b[p:{stop}], 'utf-8', 'replace')"
                short = f"{length} <= {LONG_STRING_BYTES}"
                self.line(f"{target} = {text} if {short} else long_string(b[p:{stop}])")
            case "bytes":
                self.line(f"{target} = bytes(b[p:{stop}])")
            case _:
                self.line(f"{target} = b[p:{stop}]")
        self.line(f"p = {stop}")

    def array(self, element: Type, target: str, count: str) -> None:
        name = target.partition(".")[2] or target
        least = max(1, least_bytes(element, self.version, self.flexible))
        message = f"{name} is null, or has more elements than bytes"
        self.line(f"if not 0 <= {count} * {least} <= n - p: raise Corrupt({message!r})")
        raised = f"raise OverLimit({ELEMENTS!r}, {'too many elements in ' + name!r})"
        self.line(f"if (m := m - {count}) < 0: {raised}")
        if isinstance(element, Fixed) and element.name != "uuid":
            self.line(f"{target} = list(unpack_from(f'>{{{count}}}{element.format}', b, p))")
            self.line(f"p += {count} * {element.size}")
            return
        items, item = self.fresh("a"), self.fresh("i")
        self.line(f"{target} = {items} = []")
        with self.block(f"for _ in range({count}):"):
            if isinstance(element, Struct):
                item = self.struct(element.cls)
            else:
                self.value(element, item, False)
            self.flush()
            self.line(f"{items}.append({item})")


class _EncoderWriter(_Writer):
    """Locals: ``o`` the message, ``w`` the bytes so far, ``c`` the cuts, ``m`` the most bytes."""

    def __init__(self, version: int, flexible: bool) -> None:
        super().__init__(version, flexible)
        self.names |= {
            "V": VARINTS,
            "varint": encode_varint,
            "pack": struct.pack,
            "records_size": records_size,
            "too_large": answer_too_large,
        }

    def flush(self, out: str) -> None:
        """Write the run of fixed-size items with one call; format ``x`` is a zero byte."""
        run, self.run = self.run, []
        if not run:
            return
        if any(value for _, value in run):
            self.line(f"{out} += {self.packed(run)}")
        else:
            self.line(f"{out} += {bytes(len(run))!r}")

    def varint(self, value: str, out: str) -> None:
        """Write a varint that is nearly always one byte; a run is written with it."""
        if not self.run:
            self.line(f"{out} += V[{value}] if {value} < 128 else varint({value})")
            return
        run, self.run = self.run, []
        short = self.packed([*run, ("B", value)])
        self.line(f"{out} += {short} if {value} < 128 else {self.packed(run)} + varint({value})")

    def packed(self, run: list[tuple[str, str]]) -> str:
        formats = ">" + "".join(code for code, _ in run)
        values = ", ".join(value for _, value in run if value)
        return f"{self.constant('pack', struct.Struct(formats).pack)}({values})"

    def length(self, prefix: str, length: str, out: str) -> None:
        """Write a length or a count; null is -1."""
        if self.flexible:
            compact = self.fresh("k")
            self.aside(f"{compact} = {length} + 1")
            self.varint(compact, out)
        else:
            self.run.append((prefix, length))
            self.flush(out)

    def struct(self, owner: str, cls: type[Any], out: str) -> None:
        plain, tagged = layout(cls, self.version)
        for field in plain:
            self.value(field.type, f"{owner}.{field.name}", field.may_be_null(self.version), out)
        if self.flexible and tagged:
            self.flush(out)
            self.tagged_fields(tagged, owner, out)
        elif self.flexible:
            self.run.append(("x", ""))
        self.flush(out)

    def tagged_fields(self, tagged: tuple[Field, ...], owner: str, out: str) -> None:
        """Write those that differ from their default, as Kafka's writers do."""
        there = []
        for field in tagged:
            local, flag = self.fresh("v"), self.fresh("f")
            there.append((field, local, flag))
            self.line(f"{local} = {owner}.{field.name}")
            self.line(f"{flag} = {self.differs(field, local)}")
        self.line(f"{out} += V[{' + '.join(flag for _, _, flag in there)}]")
        for field, local, flag in there:
            with self.block(f"if {flag}:"):
                inner, size = self.fresh("w"), self.fresh("n")
                self.line(f"{inner} = bytearray()")
                self.value(field.type, local, field.may_be_null(self.version), inner)
                self.flush(inner)
                self.line(f"{size} = len({inner})")
                self.line(f"{out} += {encode_varint(field.tag or 0)!r}")
                self.varint(size, out)
                self.line(f"{out} += {inner}")

    def differs(self, field: Field, local: str) -> str:
        match field.default:
            case None:
                return f"{local} is not None"
            case list():
                return f"{local} is None or len({local}) > 0"
            case default:
                constant = self.constant("D", default)
                return f"{local} is not {constant} and {local} != {constant}"

    def value(self, kind: Type, value: str, nullable: bool, out: str) -> None:
        """Write a value, or add it to the run."""
        match kind:
            case Fixed(name="uuid"):
                self.run.append((kind.format, f"{value}.bytes"))
            case Fixed():
                self.run.append((kind.format, value))
            case Blob():
                self.blob(kind, value, nullable, out)
            case Array():
                self.array(kind.element, value, nullable, out)
            case Struct():
                local = self.fresh("v")
                self.aside(f"{local} = {value}")
                if not nullable:
                    self.struct(local, kind.cls, out)
                    return
                self.flush(out)
                self.line(f"{out} += b'\\xff' if {local} is None else b'\\x01'")
                with self.block(f"if {local} is not None:"):
                    self.struct(local, kind.cls, out)

    def blob(self, kind: Blob, value: str, nullable: bool, out: str) -> None:
        data, size = self.fresh("s"), self.fresh("k")
        # An error's message quotes names, each of which may be as long as a string can be.
        said = f"{data}[:{_MAX_MESSAGE_CHARS}]" if value.endswith("error_message") else data
        present = {
            "string": f"{data} = {said}.encode(); {size} = len({data})",
            "bytes": f"{size} = len({data})",
            "records": f"{size} = records_size({data})",
        }[kind.name]
        self.aside(f"{data} = {value}")
        if nullable:
            self.aside(f"if {data} is None: {size} = -1; {data} = b''")
            self.aside(f"else: {present}")
        else:
            self.aside(present)
        if kind.name == "string" and self.flexible:
            self.aside(f"if {size} > {MAX_STRING_BYTES}: raise ValueError({value + ' too long'!r})")
        self.length(kind.prefix, size, out)
        if kind.name == "records":
            assert out == "w", "records cannot be tagged"
            self.line(f"if {size} > 0: c.append((len(w), {data}))")
        else:
            self.line(f"{out} += {data}")

    def array(self, element: Type, value: str, nullable: bool, out: str) -> None:
        items, count, item = self.fresh("a"), self.fresh("k"), self.fresh("i")
        self.aside(f"{items} = {value}")
        if nullable:
            self.aside(f"if {items} is None: {count} = -1; {items} = ()")
            self.aside(f"else: {count} = len({items})")
        else:
            self.aside(f"{count} = len({items})")
        self.length("i", count, out)
        if isinstance(element, Fixed) and element.name != "uuid":
            self.line(f"if {items}: {out} += pack(f'>{{{count}}}{element.format}', *{items})")
            return
        with self.block(f"for {item} in {items}:"):
            self.line(f"if len({out}) > m: raise too_large(m)")
            if isinstance(element, Struct):
                self.struct(item, element.cls, out)
            else:
                self.value(element, item, False, out)
                self.flush(out)
