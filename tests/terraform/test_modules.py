"""Each Terraform module is formatted, is valid, and keeps the rules that its tests state.

Shell.
"""

from pathlib import Path

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
    It gives each module what it needs, and nothing that it does not know.
    """
    told = terraform(initialised(checkout / "examples" / example), "validate")

    assert "The configuration is valid" in told
