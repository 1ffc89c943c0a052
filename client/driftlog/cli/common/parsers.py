"""The command line's grammar: commands with subcommands, and messages for a wrong line.

    driftlog topics create flights --partitions 3      driftlog's form
    driftlog topics --create --topic flights …         the form of Kafka's scripts: the same

Root.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from driftlog.cli.common.errors import USAGE
from driftlog.cli.common.times import parse_time

Parser: TypeAlias = argparse.ArgumentParser
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run: TypeAlias = Callable[[argparse.Namespace], int]

STORE_VARIABLE: Final = "DRIFTLOG_STORE"
"""Names the location of the objects, for commands that read the bucket."""

At = tuple[str, int]
"""Topic and partition."""

_ANSWERED_AT_ONCE = ("-h", "--help", "--version")


class HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions, and leaves examples as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)


def new_parser(prog: str, description: str) -> Parser:
    """The parser of the whole command."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=HelpFormatter
    )
    parser.set_defaults(run=show_help, parser=parser)
    return parser


def add_commands(parser: Parser) -> Commands:
    """Let *parser* have subcommands; returns the object to add them to."""
    return parser.add_subparsers(metavar="COMMAND", parser_class=argparse.ArgumentParser)


def add_group(commands: Commands, name: str, *, help: str) -> Commands:  # noqa: A002  # argparse's
    """Add a command that needs a subcommand."""
    return add_commands(add_command(commands, name, show_help, help=help))


def add_command(
    commands: Commands,
    name: str,
    run: Run,
    *,
    help: str,  # noqa: A002  # argparse's
    description: str | None = None,
    examples: str | None = None,
) -> Parser:
    """Add a command that *run* executes."""
    parser = commands.add_parser(
        name,
        help=help,
        description=description or f"{help[0].upper()}{help[1:]}.",
        epilog=None if examples is None else f"examples:\n{examples.rstrip()}",
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def show_help(options: argparse.Namespace) -> int:
    """Print the help of a command that lacks its subcommand."""
    options.parser.print_help(sys.stderr)
    return USAGE


def commands_of(parser: Parser) -> dict[str, Parser]:
    """The subcommands of *parser*, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options_of(parser: Parser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings}


def _elsewhere(parser: Parser, word: str) -> str:
    """A hint at the command with that option, if one has it, or two."""
    name = word.partition("=")[0]
    has = [f"`{inner.prog}`" for inner in walk(parser) if name in _options_of(inner)]
    if len(has) not in (1, 2):
        return ""
    return f"; {' and '.join(has)} {'has' if len(has) == 1 else 'have'} {name}"


def walk(parser: Parser) -> Iterator[Parser]:
    """*parser* and the parsers of all its subcommands."""
    yield parser
    for inner in commands_of(parser).values():
        yield from walk(inner)


def in_our_order(parser: Parser, line: Sequence[str]) -> list[str]:
    """*line*, with an action in the form of Kafka's scripts replaced by driftlog's subcommand."""
    words = list(line)
    if not words or words[0] not in commands_of(parser):
        return words
    actions = commands_of(commands_of(parser)[words[0]])
    if not actions or len(words) < 2 or not words[1].startswith("-"):
        return words
    for at, word in enumerate(words[1:], 1):
        if word in actions and not words[at - 1].startswith("-"):
            break  # driftlog's form, with an option before it
        if word.startswith("--") and word[2:] in actions:
            return [words[0], word[2:], *words[1:at], *words[at + 1 :]]
    return words


def parse(parser: Parser, lenient: Parser, line: Sequence[str]) -> argparse.Namespace:
    """Parse *line*, or exit with a message.

    Unknown words are reported first: argparse reports missing ones first, which hides a typo.

    Args:
        lenient: a copy of *parser*, which this call changes so that nothing is required.
    """
    for inner in walk(lenient):
        _forget_what_must_be_there(inner)
    options, words = lenient.parse_known_args(list(line))
    unknown = _take_words(options, [word for word in words if word not in _ANSWERED_AT_ONCE])
    if unknown:
        prog: str = options.parser.prog
        said = f"unknown: {' '.join(unknown)}; `{prog} --help` lists the options"
        said += "".join(_elsewhere(parser, word) for word in unknown)
        options.parser.exit(USAGE, f"{prog}: {said}\n")
    options, words = parser.parse_known_args(list(line))
    _take_words(options, words)
    return options


def _take_words(options: argparse.Namespace, words: list[str]) -> list[str]:
    """Add words after an option to a list that began before it, which argparse does not do."""
    if any(word.startswith("-") and word != "-" for word in words):
        return words
    for action in options.parser._actions:
        if not action.option_strings and action.nargs == "*":
            given = list(getattr(options, action.dest, None) or [])
            setattr(options, action.dest, [*given, *words])
            return []
    return words


def _forget_what_must_be_there(parser: Parser) -> None:
    for action in list(parser._actions):
        if isinstance(action, argparse._HelpAction | argparse._VersionAction):
            _remove(parser, action)
        action.required = False
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction):
            match action.nargs:
                case None:
                    action.nargs = "?"
                case "+":
                    action.nargs = "*"
                case _:
                    pass
    for group in parser._mutually_exclusive_groups:
        group.required = False


def _remove(parser: Parser, action: argparse.Action) -> None:
    parser._remove_action(action)
    for name in action.option_strings:
        parser._option_string_actions.pop(name, None)


# ── Types of arguments ──


def positive(text: str) -> int:
    """A count from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def grace_ms(text: str) -> int:
    """The grace of a cluster."""
    if not text.isdecimal() or not 1_000 <= int(text) < 2**53:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1000 on (milliseconds)")
    return int(text)


def natural(text: str) -> int:
    """A number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)


def key_value(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name.strip(), value


def key_values(text: str) -> list[tuple[str, str]]:
    """NAME=VALUE[,NAME=VALUE]; a value may have commas, in brackets or not, as Kafka's scripts."""
    found: list[tuple[str, str]] = []
    for part in re.split(r",(?![^\[]*\])", text):
        if found and "=" not in part:  # cleanup.policy=compact,delete
            found[-1] = found[-1][0], f"{found[-1][1]},{part}"
            continue
        name, value = key_value(part)
        if value.startswith("[") and value.endswith("]"):
            value = value[1:-1]
        found.append((name, value))
    return found


def partitions(text: str) -> list[int]:
    """N[,N…]; a range is N-M."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"{part!r} is no partition: 0, or 0,2, or 0-5")
        found += range(int(first), int(last or first) + 1)
    return found


def moment(text: str) -> int:
    """A time, in milliseconds since 1970."""
    try:
        return parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def topic_partitions(text: str) -> tuple[str, list[int] | None]:
    """TOPIC[:N,…]; None: all of its partitions."""
    name, colon, which = text.partition(":")
    return name, partitions(which) if colon else None


def flatten(values: list[list[Any]] | None) -> list[Any]:
    """All values of an option that may be repeated, each time with several values."""
    return [value for inner in values or [] for value in inner]
