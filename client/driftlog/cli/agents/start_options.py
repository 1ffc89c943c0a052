"""The start options of `driftlog agent run` and `driftlog dev`, as their parsers have them.

Every option of a parser is a setting of the file and of the environment, too, without those of
`_OF_ONE_RUN`.  A setting's default moves from the parser to its `StartOption`: so a flag that is
given differs from one that is not.  An option whose metavar has a comma takes a list in the file.

Root.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from driftlog.cli.agents.start_settings import Shape, StartOption
from driftlog.cli.common.parsers import Parser

_OF_ONE_RUN: Final = frozenset({"help", "agents", "config", "config-file", "json"})
"""Options that are no settings: they say what the command does, or where settings are."""

_MARKS: Final = re.compile(r"%\(default\)s")


def take_options(parser: Parser) -> None:
    """Make the options of *parser* settings; `start_options` returns them."""
    found: list[StartOption] = []
    for action in parser._actions:
        name = action.option_strings[-1].removeprefix("--") if action.option_strings else ""
        if not name or name in _OF_ONE_RUN:
            continue
        if action.help:
            action.help = _MARKS.sub(str(action.default), action.help)
        found.append(
            StartOption(
                name=name,
                attribute=action.dest,
                shape=_shape(action),
                parse=_parse(action),
                default=action.default,
                documentation=action.help or "",
            )
        )
        action.default = None
        action.required = False
    parser.set_defaults(start_options=tuple(found))


def start_options(parser: Parser) -> tuple[StartOption, ...]:
    """What `take_options` took from *parser*."""
    found: tuple[StartOption, ...] = parser.get_default("start_options") or ()
    return found


def given_flags(options: argparse.Namespace) -> dict[str, object]:
    """The flags that the command line gives, parsed, by the name of their option."""
    taken: tuple[StartOption, ...] = options.start_options
    values: Mapping[str, Any] = vars(options)
    return {o.name: values[o.attribute] for o in taken if values[o.attribute] is not None}


def _shape(action: argparse.Action) -> Shape:
    if isinstance(action, argparse._AppendAction):
        return Shape.REPEATED
    if isinstance(action, argparse._StoreTrueAction):
        return Shape.SWITCH
    return Shape.COMMAS if "," in str(action.metavar) else Shape.ONE


def _parse(action: argparse.Action) -> Callable[[str], object]:
    """The action's type and choices; wrong values are ValueErrors."""

    def parse(text: str) -> object:
        try:
            value = text if action.type is None else _typed(action.type, text)
        except argparse.ArgumentTypeError as error:
            raise ValueError(str(error)) from error
        if action.choices is not None and value not in action.choices:
            listed = ", ".join(map(str, action.choices))
            raise ValueError(f"{text!r} is none of {listed}")
        return value

    return parse


def _typed(type_: Any, text: str) -> object:
    return Path(text) if type_ is Path else type_(text)
