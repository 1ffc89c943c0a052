"""READMEs of Terraform's modules say what a module takes and gives now.

Shell.
"""

from pathlib import Path

import pytest

from tools import terraform_tables


@pytest.mark.parametrize("module", terraform_tables.MODULES, ids=lambda module: module.name)
def test_a_readme_is_up_to_date(module: Path) -> None:
    """
    Else: ``python -m tools.terraform_tables``.
    """
    assert terraform_tables.page(module) == (module / "README.md").read_text()


def test_a_variable_without_a_description_is_refused(tmp_path: Path) -> None:
    """
    A table with an empty cell would tell a reader nothing.
    """
    module = terraform_tables.MODULES[0]
    for name in ("README.md", "versions.tf", "outputs.tf"):
        (tmp_path / name).write_text((module / name).read_text())
    (tmp_path / "variables.tf").write_text('variable "name" {\n  type = string\n}\n')

    with pytest.raises(ValueError, match="name has no description"):
        terraform_tables.page(tmp_path)
