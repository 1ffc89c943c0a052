"""What a machine gets from its user data, and the command lines of its units.

    user data ──gzip, base64──▶ #cloud-config, JSON ──▶ files by path, commands that run once

Pure.
"""

import base64
import gzip
import json
import re
import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFiles:
    """The files that cloud-init writes, and the commands that it runs then."""

    contents: dict[str, str]
    """By path."""
    modes: dict[str, str]
    commands: list[list[str]]

    def exec_start(self, unit: str) -> list[str]:
        """Words of the command line of *unit*, as systemd splits them."""
        return shlex.split(self.setting(unit, "ExecStart"))

    def setting(self, unit: str, name: str) -> str:
        """The value of *name* in *unit*, which has it once."""
        text = self.contents[f"/etc/systemd/system/{unit}"]
        [value] = re.findall(rf"(?m)^{name}=(.+)$", text)
        return str(value)

    def variables(self, path: str) -> dict[str, str]:
        """Variables of a file of ``NAME=value`` lines."""
        lines = self.contents[path].splitlines()
        named = (line.removeprefix("export ").partition("=") for line in lines if "=" in line)
        return {name: value for name, _, value in named}


def machine_files(user_data: str) -> MachineFiles:
    """The files in *user_data*, which is base64 of gzip."""
    text = gzip.decompress(base64.b64decode(user_data)).decode()
    head, _, body = text.partition("\n")
    assert head == "#cloud-config"
    config = json.loads(body)
    files = config["write_files"]
    return MachineFiles(
        contents={file["path"]: file["content"] for file in files},
        modes={file["path"]: file["permissions"] for file in files},
        commands=config["runcmd"],
    )
