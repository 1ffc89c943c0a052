"""Each Terraform module is formatted, is valid, and keeps the rules that its tests state.

Shell.
"""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.terraform.checkout import (
    EXAMPLES,
    MODULES,
    TERRAFORM,
    copied,
    initialised,
    mirror,
    terraform,
)

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("terraform")]


_SECURITY_GROUPS: Final = re.compile(
    r'(?ms)^resource "aws_(?:security_group|vpc_security_group_\w+_rule)" "\w+" \{$(.+?)^\}$'
)
_EC2_TAKES: Final = re.compile(r"[a-zA-Z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{1,255}")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mirror()
    return copied(tmp_path_factory.mktemp("terraform"))


def test_files_are_formatted() -> None:
    """
    Else: ``terraform fmt -recursive terraform``.
    """
    mirror()

    assert "" == terraform(TERRAFORM, "fmt", "-check", "-recursive", "-diff")


@pytest.mark.parametrize("module", ["agents", "metadata", "network"])
def test_ec2_takes_descriptions_of_security_groups(module: str) -> None:
    """
    It refuses an apostrophe, and the first apply ends there; moto and a plan do not tell.
    """
    text = (TERRAFORM / "modules" / module / "main.tf").read_text()
    described = [
        re.findall(r'(?m)^  description += (?:each\.key|"(.+)")$', body)
        for body in _SECURITY_GROUPS.findall(text)
    ]

    assert {1} == {len(found) for found in described}
    assert [] == [d for [d] in described if d and not _EC2_TAKES.fullmatch(d)]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_keeps_its_rules(checkout: Path, module: str) -> None:
    """
    What its variables refuse, what its roles may do, what it opens to whom: ``terraform test``.
    """
    told = terraform(initialised(checkout / "modules" / module), "test")

    assert "0 failed." in told
    assert "0 passed" not in told


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_valid(checkout: Path, example: str) -> None:
    """
    It gives each module what it needs, and nothing that it does not know; its variables refuse what
    its modules would, with what to do.
    """
    folder = initialised(checkout / "examples" / example)
    told = terraform(folder, "validate")

    assert "The configuration is valid" in told
    if (folder / "variables.tf").exists():
        told = terraform(folder, "test")
        assert "0 failed." in told
        assert "0 passed" not in told
