"""The tables of inputs and outputs in the READMEs of terraform/, made from the modules themselves.

    variables.tf, outputs.tf, versions.tf ──▶ between the markers of each module's README.md

Markers, headings and columns are those of terraform-docs (``terraform-docs markdown table
--anchor=false``), so that it can take over where it is installed.  `python -m
tools.terraform_tables` writes them; a test fails where a README is older than its module.

Shell.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MODULES: Final = sorted((Path(__file__).resolve().parents[1] / "terraform" / "modules").iterdir())

_BEGIN: Final = "<!-- BEGIN_TF_DOCS -->\n"
_END: Final = "<!-- END_TF_DOCS -->\n"
_QUOTED: Final = '"(.+)"'
_ANY: Final = "(.+)"
_BLOCK: Final = r'(?ms)^%s "(\w+)" \{\n(.*?)^\}'


def page(module: Path) -> str:
    """The README of *module*, with tables that are up to date.

    Raises:
        ValueError: the README has no markers, or a variable or an output has no description.
    """
    text = (module / "README.md").read_text()
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{module / 'README.md'}: no {_BEGIN.strip()} … {_END.strip()}")
    return head + begin + "\n".join(_tables(module)) + "\n" + end + tail


def _tables(module: Path) -> Iterator[str]:
    versions = (module / "versions.tf").read_text()
    yield "## Requirements\n"
    yield "| Name | Version |\n|------|---------|"
    for name, setting in (("terraform", "required_version"), ("aws", "version")):
        yield f"| {name} | {_cell(_setting(versions, setting, _QUOTED))} |"
    yield "\n## Inputs\n"
    yield "| Name | Description | Type | Default | Required |"
    yield "|------|-------------|------|---------|:--------:|"
    for name, body in _blocks(module / "variables.tf", "variable"):
        default = re.search(r"(?m)^  default +?= (.+)$", body)
        yield (
            "| "
            + " | ".join(
                [
                    name,
                    _described(module, name, body),
                    f"`{_setting(body, 'type', _ANY)}`",
                    f"`{default[1]}`" if default else "n/a",
                    "no" if default else "yes",
                ]
            )
            + " |"
        )
    yield "\n## Outputs\n"
    yield "| Name | Description |\n|------|-------------|"
    for name, body in _blocks(module / "outputs.tf", "output"):
        yield f"| {name} | {_described(module, name, body)} |"


def _blocks(file: Path, kind: str) -> list[tuple[str, str]]:
    """Names and bodies of the blocks, by name, as terraform-docs sorts them."""
    return sorted(re.findall(_BLOCK % kind, file.read_text()))


def _described(module: Path, name: str, body: str) -> str:
    found = re.search(r'(?m)^  description += "(.+)"$', body)
    if found is None:
        raise ValueError(f"{module.name}: {name} has no description")
    return _cell(found[1].replace('\\"', '"'))


def _setting(text: str, name: str, value: str) -> str:
    found = re.search(rf"(?m)^ *{name} += {value}$", text)
    if found is None:
        raise ValueError(f"no {name} in {text!r:.80}")
    return found[1]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace(">", "&gt;").replace("<", "&lt;")


def main() -> None:
    for module in MODULES:
        (module / "README.md").write_text(page(module))


if __name__ == "__main__":
    main()
