"""A module that imports what its kind forbids, or a package that its extra does not install, fails
here.

import-linter holds the folders to their order (pyproject.toml); this holds the modules to
their kinds, and the extras to what the packages import.
Shell.
"""

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[1]
FOLDERS: Final = {
    "driftlog_metadata": "metadata",
    "driftlog_tiering": "tiering",
    "driftlog_agents": "agents",
    "driftlog_spark_reader": "spark_reader",
    "driftlog": "client",
}
KIND: Final = re.compile(r"^(Pure|Port|Adapter|Shell|Root)(\.|: \S.*\.)$", re.DOTALL)

PURE_STDLIB: Final = set(
    (
        "__future__ abc array base64 binascii bisect collections contextlib copy dataclasses "
        "datetime decimal difflib enum errno fractions functools gzip hashlib heapq hmac io "
        "ipaddress itertools json math mmap numbers operator random re shlex statistics string "
        "struct sys textwrap threading tomllib types typing unicodedata urllib uuid warnings "
        "weakref zlib"
    ).split()
)
"""What computes.  Some of these do other things too: see the next two."""

ONLY: Final = {
    "mmap": {"mmap.mmap"},  # memory: to map a file takes one that is open
    "random": {"random.Random"},  # an argument's type
    "shlex": {"shlex.quote"},  # a shlex reads a stream
    "sys": {"sys.byteorder", "sys.getrefcount", "sys.intern", "sys.maxsize", "sys.version_info"},
    "tomllib": {"tomllib.TOMLDecodeError", "tomllib.loads"},  # `load` reads a file
    "threading": {"threading.local"},  # zstandard's objects must not be shared by threads
}
"""Modules of which pure code may use these names and no others."""

IMPURE_NAMES: Final = set(
    (
        "datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today "
        "datetime.date.today io.open io.FileIO urllib.request urllib.robotparser "
        "uuid.uuid1 uuid.uuid4 uuid.uuid6 uuid.uuid7 uuid.uuid8 uuid.getnode "
        "pyarrow.fs pyarrow.dataset pyarrow.flight pyarrow.memory_map pyarrow.OSFile "
        "builtins.open builtins.input builtins.print"
    ).split()
)
"""Clocks, dice and disks inside what is otherwise pure."""

PURE_SHARE_OF_THE_LOG: Final = 0.45

PURE_THIRD_PARTY: Final = {"cramjam", "crc32c", "pyarrow", "re2", "zstandard"}

DISTRIBUTIONS: Final = {
    "confluent_kafka": "confluent-kafka",
    "google": "protobuf",
    "grpc": "grpcio",
    "prometheus_client": "prometheus-client",
    "py4j": "pyspark",
    "re2": "google-re2",
}
"""What installs an import, where its name does not say."""

OUTSIDE: Final = ("driftlog.cli", "driftlog.bucket.")
"""They say so when an extra is missing."""

OPTIONAL: Final = {
    # grpcio and protobuf: most clusters of Spark have versions of their own, and only a tail that
    # is read from etcd needs them, on the driver.
    "driftlog_spark_reader.tail.open_tail": "driftlog_metadata.stores.etcd.",
    # The extra `otel`.
    "driftlog_agents.process.otel_traces": "opentelemetry.",
}
"""Modules that import others inside a function, and say what to install where that fails."""


def _modules() -> Iterator[tuple[str, Path]]:
    for package, folder in FOLDERS.items():
        root = REPOSITORY / folder
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


PATHS: Final = dict(_modules())
TREES: Final = {module: ast.parse(path.read_bytes()) for module, path in PATHS.items()}
COMPILED: Final = {
    ".".join(path.relative_to(REPOSITORY / folder).with_suffix("").parts): path
    for folder in FOLDERS.values()
    for path in (REPOSITORY / folder).rglob("*.pyx")
}


def _last_paragraph(docstring: str) -> str:
    """What follows the last line that starts with a kind; the whole last line if none does."""
    lines = docstring.strip().splitlines()
    for i in range(len(lines) - 1, -1, -1):
        if re.match(r"(Pure|Port|Adapter|Shell|Root)\b[.:]", lines[i]):
            return "\n".join(lines[i:])
    return lines[-1] if lines else ""


def kind(module: str) -> str | None:
    """Pure, Port, Adapter, Shell or Root; None where the docstring does not end with one."""
    if module in COMPILED:
        found = re.search(r'^"""(.*?)"""', COMPILED[module].read_text(), re.DOTALL | re.MULTILINE)
        docstring = found[1] if found else ""
    else:
        docstring = ast.get_docstring(TREES[module]) or ""
    match = KIND.match(_last_paragraph(docstring))
    return match[1] if match else None


def imported(tree: ast.AST) -> Iterator[str]:
    """Every name that *tree* imports at run time, at any depth of its code.

    ``from a import b`` gives ``a.b`` where that is a module of ours, or else ``a``.
    """
    for node in _at_run_time(tree):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    inner = f"{module}.{alias.name}"
                    yield inner if inner in TREES or inner in COMPILED else module
            case _:
                pass


def _at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node, but those under ``if TYPE_CHECKING:``."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting.extend(node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))


def names_used(tree: ast.AST) -> Iterator[str]:
    """Dotted names as they are used, with what they were imported from in front."""
    origin = {name: f"builtins.{name}" for name in ("open", "input", "print")}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                for alias in names:
                    first = alias.name.partition(".")[0]
                    origin[alias.asname or first] = alias.name if alias.asname else first
                yield from (a.name for a in names)
            case ast.ImportFrom(module=str(module), names=names):
                origin |= {a.asname or a.name: f"{module}.{a.name}" for a in names}
                yield from (f"{module}.{a.name}" for a in names)
            case _:
                pass
    for node in ast.walk(tree):
        dotted = _dotted(node)
        if dotted is not None:
            first, _, rest = dotted.partition(".")
            if first in origin:
                yield f"{origin[first]}.{rest}" if rest else origin[first]


def _dotted(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return name
        case ast.Attribute(value=value, attr=attribute):
            inner = _dotted(value)
            return None if inner is None else f"{inner}.{attribute}"
        case _:
            return None


OURS: Final = sorted([*TREES, *COMPILED])


@pytest.mark.parametrize("module", OURS)
def test_every_module_says_its_kind(module: str) -> None:
    """
    The last sentence of its docstring: Pure, Port, Adapter, Shell or Root.
    """
    assert kind(module) is not None, f"{module} does not end its docstring with a kind"


@pytest.mark.parametrize("module", [m for m in TREES if kind(m) in ("Pure", "Port")])
def test_pure_modules_import_only_pure_modules(module: str) -> None:
    """
    Hence nothing pure reaches a clock, a socket, a disk or a logger, at any depth.
    A port is a promise and its words: it may be imported, and imports as little.
    """
    for name in imported(TREES[module]):
        root = name.partition(".")[0]
        if root in sys.stdlib_module_names:
            allowed = PURE_STDLIB | ({"asyncio"} if kind(module) == "Port" else set())
            assert root in allowed, f"{module} imports {name}"
        elif root in FOLDERS:
            assert kind(name) in ("Pure", "Port"), f"{module} imports {name}, a {kind(name)}"
        else:
            assert root in PURE_THIRD_PARTY, f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in TREES if kind(m) == "Pure"])
def test_pure_modules_use_no_clock_dice_or_disk_of_a_module_they_may_import(module: str) -> None:
    """
    `uuid` is allowed for the type, and `uuid4` is a die; `open` needs no import at all.
    """
    used = set(names_used(TREES[module]))
    others = {name for name in used if name not in ONLY.get(name.partition(".")[0], {name})}

    assert set() == (IMPURE_NAMES & used) | (others - set(ONLY))


@pytest.mark.parametrize("module", [m for m in TREES if kind(m) not in ("Root", None)])
def test_only_roots_name_adapters(module: str) -> None:
    """
    Everything else is handed its port.  An adapter may be made of several modules of its folder.
    """
    package = module.partition(".")[0]
    for name in imported(TREES[module]):
        if name.partition(".")[0] in FOLDERS and kind(name) == "Adapter":
            assert kind(module) == "Adapter", f"{module} imports {name}"
            assert name.partition(".")[0] == package, f"{module} imports {name}"


def test_folders_import_one_way() -> None:
    """
    A folder and those inside it too: neither with each other nor in a larger circle.  Hence no
    circle of modules, either.
    """
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for module, tree in TREES.items():
        for name in imported(tree):
            if name in TREES and _folder(name) != _folder(module):
                folders[_folder(module)].add(_folder(name))

    assert list(TopologicalSorter(folders).static_order())


def _folder(module: str) -> str:
    return module if PATHS[module].stem == "__init__" else module.rpartition(".")[0]


def test_the_logs_decisions_stand_apart_from_its_requests() -> None:
    """
    A share of `log/` that tests reach without a clock, a store or a task, by lines.  It only rises:
    issue 14 asks for 45 %.
    """
    lines = Counter(
        {
            pure: sum(
                len(PATHS[module].read_text().splitlines())
                for module in TREES
                if module.startswith("driftlog_agents.log.") and (kind(module) == "Pure") is pure
            )
            for pure in (True, False)
        }
    )

    assert lines[True] / lines.total() >= PURE_SHARE_OF_THE_LOG


@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_every_package_ships_its_types(package: str) -> None:
    """
    PEP 561: without `py.typed` a user's mypy does not read our hints.
    """
    assert (REPOSITORY / FOLDERS[package] / package / "py.typed").exists()


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("driftlog_agents", "agent"),
        ("driftlog_spark_reader", "spark"),
        ("driftlog_spark_reader.arrow", "arrow"),
        ("driftlog", None),
    ],
)
def test_an_extra_installs_what_its_package_imports(package: str, extra: str | None) -> None:
    """
    Whatever a module of the package needs at run time, through our other packages too.
    The client's commands and what reads the bucket are outside: they say so when an extra is
    missing; so are DuckDB, Polars and matplotlib, whose users are told, too.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(project["optional-dependencies"][extra] if extra else []),
    ]
    installed = {re.split(r"[^A-Za-z0-9._-]", r)[0] for r in requirements}
    starts = [m for m in TREES if f"{m}.".startswith(f"{package}.") and not m.startswith(OUTSIDE)]

    needed = {DISTRIBUTIONS.get(root, root) for root in _third_parties(starts)}

    assert set() == needed - installed - {"duckdb", "matplotlib", "polars"}


def _third_parties(modules: list[str]) -> set[str]:
    """Top-level names, not ours and not Python's, that importing *modules* imports."""
    seen: set[str] = set()
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in seen or module not in TREES or module.startswith(OUTSIDE):
            continue
        seen.add(module)
        for name in imported(TREES[module]):
            root = name.partition(".")[0]
            if module in OPTIONAL and name.startswith(OPTIONAL[module]):
                continue
            if root in FOLDERS:
                # Importing a module imports the packages above it.
                parts = name.split(".")
                waiting += [".".join(parts[: i + 1]) for i in range(len(parts))]
            elif root not in sys.stdlib_module_names:
                found.add(root)
    return found
