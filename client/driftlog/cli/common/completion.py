"""`driftlog completion bash|zsh|fish`: completion scripts, made from the parser itself.

Each script finds the command of the line (other words are skipped), and offers its commands and
options, or the values of the option before the cursor.
Shell.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from driftlog.cli.common.errors import OK
from driftlog.cli.common.parsers import Commands, Parser, add_command, commands_of


class _Takes(Enum):
    """The kind of value that an option takes."""

    NOTHING = "nothing"
    FILE = "file"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class _Option:
    names: tuple[str, ...]
    help: str
    takes: _Takes
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """A command, and the words that may follow it."""

    words: tuple[str, ...]
    commands: dict[str, str]
    options: tuple[_Option, ...]
    values: tuple[str, ...]
    """The choices of its first positional argument."""
    takes_files: bool


def add_commands(commands: Commands, whole: Parser) -> None:
    """Add the command of this file; *whole* is the parser to complete."""
    parser = add_command(
        commands,
        "completion",
        lambda options: _completion(options, whole),
        help="print the completion script of a shell",
        examples='  eval "$(driftlog completion bash)"          in ~/.bashrc\n'
        '  eval "$(driftlog completion zsh)"           in ~/.zshrc, behind compinit\n'
        "  driftlog completion fish > ~/.config/fish/completions/driftlog.fish\n",
    )
    parser.add_argument("shell", choices=sorted(_SHELLS))


def _completion(options: argparse.Namespace, whole: Parser) -> int:
    print(_SHELLS[options.shell](list(_places(whole, ()))), end="")
    return OK


# ── The parser ──


def _places(parser: Parser, words: tuple[str, ...]) -> Iterator[_Place]:
    inner = commands_of(parser)
    helps: dict[str, str] = {}
    options: list[_Option] = []
    values: tuple[str, ...] = ()
    takes_files = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {a.dest: a.help or "" for a in action._choices_actions}
        elif action.option_strings:
            options.append(_option(action))
        else:
            values = values or tuple(map(str, action.choices or ()))
            takes_files = takes_files or "FILE" in str(action.metavar)
    yield _Place(words, {n: helps.get(n, "") for n in inner}, tuple(options), values, takes_files)
    for name, command in inner.items():
        yield from _places(command, (*words, name))


def _option(action: argparse.Action) -> _Option:
    if action.nargs == 0:
        takes = _Takes.NOTHING
    elif action.type is Path:
        takes = _Takes.FILE
    else:
        takes = _Takes.OTHER
    text = " ".join(argparse.HelpFormatter("")._expand_help(action).split()) if action.help else ""
    return _Option(tuple(action.option_strings), text, takes, tuple(map(str, action.choices or ())))


def _path(words: tuple[str, ...]) -> str:
    """`` topics create``: the path of a command in the scripts."""
    return "".join(f" {word}" for word in words)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _steps(places: list[_Place]) -> str:
    """A pattern of the paths of all commands."""
    return "|".join(f'"{_path(place.words)}"' for place in places if place.words)


# ── Bash ──


_BASH: Final = """\
# bash completion of driftlog; eval "$(driftlog completion bash)"
_driftlog() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} at="" word words=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$at $word" in
            {steps}) at="$at $word" ;;
        esac
    done
    COMPREPLY=()
    case "$at|$prev" in
{values}
    esac
    case "$at" in
{places}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -F _driftlog driftlog
"""


def _bash(places: list[_Place]) -> str:
    values, lines = [], []
    for place in places:
        files, others = [], []
        for option in place.options:
            patterns = [f'"{_path(place.words)}|{name}"' for name in option.names]
            if option.choices:
                words = _quote(" ".join(option.choices))
                values.append(
                    f'        {"|".join(patterns)}) COMPREPLY=($(compgen -W {words} -- "$cur")); '
                    f"return ;;"
                )
            elif option.takes is _Takes.FILE:
                files += patterns
            elif option.takes is _Takes.OTHER:
                others += patterns
        if files:
            values.append(
                f"        {'|'.join(files)}) compopt -o filenames 2>/dev/null; "
                f'COMPREPLY=($(compgen -f -- "$cur")); return ;;'
            )
        if others:
            values.append(f"        {'|'.join(others)}) return ;;")
        words = " ".join(
            [*place.commands, *place.values, *(n for o in place.options for n in o.names)]
        )
        more = " compopt -o default 2>/dev/null;" if place.takes_files else ""
        lines.append(f'        "{_path(place.words)}") words={_quote(words)};{more} ;;')
    return _BASH.format(steps=_steps(places), values="\n".join(values), places="\n".join(lines))


# ── Zsh ──


_ZSH: Final = """\
#compdef driftlog
# zsh completion of driftlog; eval "$(driftlog completion zsh)" behind compinit
_driftlog() {{
    local prev=${{words[CURRENT-1]}} at="" word
    local -a found options
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$at $word" in
            ({steps}) at="$at $word" ;;
        esac
    done
    case "$at|$prev" in
{values}
    esac
    case "$at" in
{places}
    esac
    _describe command found
    _describe -o option options{files}
}}
compdef _driftlog driftlog
"""


def _zsh(places: list[_Place]) -> str:
    values, lines, with_words = [], [], []
    for place in places:
        for option in place.options:
            patterns = "|".join(f'"{_path(place.words)}|{name}"' for name in option.names)
            if option.choices:
                words = " ".join(map(_quote, option.choices))
                values.append(f"        ({patterns}) compadd -- {words}; return ;;")
            elif option.takes is _Takes.FILE:
                values.append(f"        ({patterns}) _files; return ;;")
            elif option.takes is _Takes.OTHER:
                values.append(f"        ({patterns}) _message {_quote(option.help)}; return ;;")
        found = [_described(name, text) for name, text in place.commands.items()]
        found += [_described(value, "") for value in place.values]
        options = [_described(name, o.help) for o in place.options for name in o.names]
        lines.append(
            f'        ("{_path(place.words)}") found=({" ".join(found)}) '
            f"options=({' '.join(options)}) ;;"
        )
        if place.takes_files:
            with_words.append(f'"{_path(place.words)}"')
    files = '\n    case "$at" in\n        ({}) _files ;;\n    esac'.format("|".join(with_words))
    return _ZSH.format(
        steps=_steps(places), values="\n".join(values), places="\n".join(lines), files=files
    )


def _described(name: str, text: str) -> str:
    escaped = name.replace(":", "\\:")
    return _quote(f"{escaped}:{text}" if text else escaped)


# ── Fish ──


_FISH: Final = """\
# fish completion of driftlog; driftlog completion fish > ~/.config/fish/completions/driftlog.fish
function __driftlog_at
    set -l at ""
    for word in (commandline -opc)[2..-1]
        switch "$at $word"
            case {steps}
                set at "$at $word"
        end
    end
    test "$at" = "$argv[1]"
end
complete -c driftlog -f
{lines}
"""


def _fish(places: list[_Place]) -> str:
    lines = []
    for place in places:
        start = f"complete -c driftlog -n {_fish_quote(f'__driftlog_at {_double(place)}')}"
        for name, text in place.commands.items():
            lines.append(f"{start} -a {name} -d {_fish_quote(text)}")
        lines += [f"{start} -a {value}" for value in place.values]
        if place.takes_files:
            lines.append(f"{start} -F")
        for option in place.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            line = f"{start} {names} -d {_fish_quote(option.help)}"
            if option.choices:
                line += f" -x -a {_fish_quote(' '.join(option.choices))}"
            elif option.takes is _Takes.FILE:
                line += " -r -F"
            elif option.takes is _Takes.OTHER:
                line += " -x"
            lines.append(line)
    steps = " ".join(_fish_quote(_path(place.words)) for place in places if place.words)
    return _FISH.format(steps=steps, lines="\n".join(lines))


def _double(place: _Place) -> str:
    return f'"{_path(place.words)}"'


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SHELLS: Final = {"bash": _bash, "zsh": _zsh, "fish": _fish}
