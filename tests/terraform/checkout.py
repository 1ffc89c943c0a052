"""Terraform as tests use it: a copy of terraform/ and deploy/, and the providers of a mirror.

Nothing is fetched: the AWS provider is in a filesystem mirror, or the tests skip and say so.
Shell.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.components import REPOSITORY

TERRAFORM: Final = REPOSITORY / "terraform"
MODULES: Final = sorted(path.name for path in (TERRAFORM / "modules").iterdir())
EXAMPLES: Final = sorted(path.name for path in (TERRAFORM / "examples").iterdir())

_PROVIDER: Final = "registry.terraform.io/hashicorp/aws"
_MIRRORS: Final = (
    *filter(None, [os.environ.get("TERRAFORM_PLUGIN_MIRROR")]),
    "/opt/tf-plugins",
    str(Path.home() / ".terraform.d" / "plugins"),
    "/usr/local/share/terraform/plugins",
    "/usr/share/terraform/plugins",
)
_LEFT_OUT: Final = shutil.ignore_patterns(".terraform", ".terraform.lock.hcl", "*.tfstate*")


def mirror() -> str:
    """The folder with the AWS provider, or a skip that says what is missing."""
    if shutil.which("terraform") is None:
        pytest.skip("no terraform on PATH: https://developer.hashicorp.com/terraform/install")
    found = next((folder for folder in _MIRRORS if (Path(folder) / _PROVIDER).is_dir()), None)
    if found is None:
        pytest.skip(
            "no mirror with Terraform's AWS provider: terraform providers mirror FOLDER, and "
            "TERRAFORM_PLUGIN_MIRROR=FOLDER"
        )
    return found


def copied(folder: Path) -> Path:
    """A copy of what Terraform reads of this checkout, below *folder*."""
    for name in ("terraform", "deploy"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=_LEFT_OUT)
    return folder / "terraform"


def initialised(configuration: Path) -> Path:
    """*configuration* after ``terraform init`` from the mirror; skips where there is none."""
    terraform(configuration, "init", "-backend=false", f"-plugin-dir={mirror()}")
    return configuration


def terraform(
    configuration: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> str:
    """What a command prints; an assertion with its output where it fails."""
    done = attempted(configuration, arguments, environment)
    output = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, f"terraform {' '.join(arguments)}\n{output[-6000:]}"
    return done.stdout


def attempted(
    configuration: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command of Terraform, ended however it may; no file of the user's is read."""
    command, *more = arguments
    quiet = ["-no-color"] if command not in ("fmt", "show", "state") else []
    return subprocess.run(
        ["terraform", command, *quiet, *more],
        cwd=configuration,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        env=_environment(environment or {}),
    )


def typed(
    lines: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """*lines* of a page in a shell in *folder*, up to the first that fails.

    Terraform's providers are those of the mirror, and it asks for no approval.
    """
    own = {
        "TF_CLI_ARGS_init": f"-plugin-dir={mirror()}",
        "TF_CLI_ARGS_apply": "-auto-approve -parallelism=30",
    }
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        env=_environment({**own, **environment}),
    )


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {
        **os.environ,
        "CHECKPOINT_DISABLE": "1",
        "TF_CLI_CONFIG_FILE": os.devnull,
        "TF_IN_AUTOMATION": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        **more,
    }


def resources(configuration: Path, environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Values of all resources in the state, by address."""
    root = json.loads(terraform(configuration, "show", "-json", environment=environment))
    found: dict[str, dict[str, Any]] = {}
    folders = [root["values"]["root_module"]]
    while folders:
        folder = folders.pop()
        folders += folder.get("child_modules", [])
        found |= {entry["address"]: entry["values"] for entry in folder.get("resources", [])}
    return found
