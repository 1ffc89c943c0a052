"""A class that takes more than a reader can hold in mind, or is wired by callbacks, fails here.

If it failed: a component would be built from a dozen loose arguments again, which every place that
builds it repeats, and which the simulator and the tests would wire in their own way.

Shell.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.test_layers import TREES, kind

_MOST_PARAMETERS: Final = 8
_MOST_CALLABLES: Final = 2

_PORTS: Final = {"Offload"}
"""Callables that are ports: each has a name, one meaning in the whole product, and a docstring."""

EXCEPTIONS: Final = {
    "driftlog.consumer.aio_consumer.AsyncConsumer": "a user's options, all but one optional",
    "driftlog.consumer.consumer.Consumer": "as AsyncConsumer",
}
"""Classes over the limits, and why."""


def _aliases() -> set[str]:
    """Names of types that are callables."""
    return {
        node.targets[0].id
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and ast.unparse(node.value).startswith("Callable[")
    }


_CALLABLE: Final = re.compile(rf"\b({'|'.join(sorted({'Callable', *_aliases()} - _PORTS))})\b")


Parameter = ast.arg | ast.AnnAssign


def _constructors() -> Iterator[tuple[str, list[Parameter]]]:
    """Every class with a constructor, and the parameters of that."""
    for module, tree in TREES.items():
        for owner in ast.walk(tree):
            if isinstance(owner, ast.ClassDef):
                parameters = [*_written(owner), *_generated(owner, kind(module))]
                yield f"{module}.{owner.name}", parameters


def _written(owner: ast.ClassDef) -> Iterator[Parameter]:
    for function in owner.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            arguments = function.args
            yield from (arguments.posonlyargs + arguments.args + arguments.kwonlyargs)[1:]


def _generated(owner: ast.ClassDef, module_kind: str | None) -> Iterator[Parameter]:
    """What a dataclass must be given.  A frozen one names what others are given (settings, ports,
    messages), and one of a pure module is a value."""
    decorators = " ".join(map(ast.unparse, owner.decorator_list))
    if "dataclass" in decorators and "frozen=True" not in decorators and module_kind != "Pure":
        for field in owner.body:
            if isinstance(field, ast.AnnAssign) and field.value is None:
                yield field


def _callables(parameters: list[Parameter]) -> list[str]:
    return [
        ast.unparse(parameter)
        for parameter in parameters
        if parameter.annotation is not None and _CALLABLE.search(ast.unparse(parameter.annotation))
    ]


def test_no_constructor_takes_more_than_eight_parameters_or_two_callables() -> None:
    """
    More are grouped in an object that means something: settings, clocks, a port.
    """
    found = {
        name: (len(parameters), _callables(parameters))
        for name, parameters in _constructors()
        if len(parameters) > _MOST_PARAMETERS or len(_callables(parameters)) > _MOST_CALLABLES
    }

    assert {} == {name: sizes for name, sizes in found.items() if name not in EXCEPTIONS}
    assert EXCEPTIONS.keys() == found.keys(), "an exception without a use"
