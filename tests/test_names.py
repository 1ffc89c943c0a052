"""Two things with one name, or a name that is no noun, fail here.

If it failed: a reader who looks for a class or a constant would find another one, or change one of
two copies.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

from tests.support.components import REPOSITORY

BROKER: Final = ("metadata", "tiering", "agents")
"""Folders whose classes and constants share one space of names."""

USERS: Final = ("client", "spark_reader", "tools")
"""Folders with names of their own: their users write `driftlog.Topic`, and know no broker."""

LISTINGS: Final = {"GroupListing", "Listing"}
"""Kafka's word (ConsumerGroupListing), and that of object stores."""

WARNINGS: Final = {"RawSegmentSkippedWarning"}
"""Python's word."""

MOST_MODULES: Final = 12
"""Of a folder: what a reader holds in mind."""

LARGE: Final = {"agents/driftlog_agents/handlers/api"}
"""A module for each of Kafka's APIs."""

SAME_CONSTANT: Final = {
    "FORMAT_VERSION": "metadata: of the cluster; tiering: of a segment",
    "HOUR_MS": "cluster/node_ids, and log/garbage, which must not import it",
    "NO_PRODUCER_ID": "tiering, and log/partition/partition",
}


def _files(folder: str) -> Iterator[Path]:
    return (
        path
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if "protocol" not in path.relative_to(REPOSITORY / folder).parts  # Kafka's own names
    )


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _classes(path: Path) -> Iterator[str]:
    return (node.name for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef))


def _constants(path: Path) -> Iterator[tuple[str, str]]:
    """Names of the module's public constants and aliases of types, with their values."""
    for node in _tree(path).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and value is not None:
            name = target.id
            if name[0].isupper() and len(name) > 1:
                yield name, ast.unparse(value)


def _twice(named: Iterator[tuple[str, Path]]) -> dict[str, list[str]]:
    found: defaultdict[str, set[Path]] = defaultdict(set)
    for name, path in named:
        found[name].add(path.relative_to(REPOSITORY))
    return {name: sorted(map(str, paths)) for name, paths in found.items() if len(paths) > 1}


def test_no_public_class_has_the_name_of_another() -> None:
    """
    In the broker, and in each package that users import.
    """
    for folders in (BROKER, *((folder,) for folder in USERS)):
        paths = list(chain.from_iterable(map(_files, folders)))
        twice = _twice(
            (name, path) for path in paths for name in _classes(path) if not name.startswith("_")
        )

        assert {} == twice


def test_no_public_constant_is_in_two_modules() -> None:
    """
    A constant of the same name and value stands once, and is imported.
    """
    for folders in (BROKER, *((folder,) for folder in USERS)):
        paths = list(chain.from_iterable(map(_files, folders)))
        twice = _twice(
            (f"{name} = {value}", path) for path in paths for name, value in _constants(path)
        )

        found = {name: at for name, at in twice.items() if name.split()[0] not in SAME_CONSTANT}
        assert {} == found


def test_modules_and_classes_are_nouns() -> None:
    """
    None ends in -ing but where the word is Kafka's or Python's.
    """
    paths = list(chain.from_iterable(map(_files, (*BROKER, *USERS))))
    classes = {name for path in paths for name in _classes(path) if name.endswith("ing")}

    assert [] == [str(path) for path in paths if path.stem.endswith("ing")]
    assert LISTINGS | WARNINGS == classes


def test_no_folder_has_more_modules_than_a_reader_holds_in_mind() -> None:
    """
    Kafka's own names apart (`protocol`).
    """
    paths = chain.from_iterable(map(_files, (*BROKER, *USERS)))
    sizes = Counter(str(p.parent.relative_to(REPOSITORY)) for p in paths if p.stem != "__init__")

    assert LARGE == {folder for folder, size in sizes.items() if size > MOST_MODULES}
