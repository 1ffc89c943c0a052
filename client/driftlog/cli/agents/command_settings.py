"""The settings of a command that starts agents: its file, the environment and its flags, together.

Shell.
"""

import argparse
import os
from functools import partial
from pathlib import Path

from driftlog.cli.agents.settings_file import LARGEST_BYTES, SettingsFileError, read_settings
from driftlog.cli.agents.start_options import given_flags
from driftlog.cli.agents.start_settings import (
    FILE_VARIABLE,
    Resolution,
    SettingsError,
    StartConfig,
    StartSettings,
    variable_of,
)


def settle(options: argparse.Namespace, command: str, elsewhere: dict[str, str]) -> StartSettings:
    """The settings of *command*; they are attributes of *options*, too, as if all were flags.

    Args:
        elsewhere: names of options that another command has, with that command.

    Raises:
        ImportError: the agent is not installed.
        SettingsError: settings that cannot be used.
    """
    # Arrow reads this when it is loaded; Parquet's writer uses only this pool: see `allocator`.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from driftlog_agents.configs.agent_settings import (  # noqa: PLC0415  # an extra
        STARTUP_CONFIGS,
        BrokerSettings,
    )
    from driftlog_agents.configs.definitions import InvalidConfigError  # noqa: PLC0415
    from driftlog_agents.configs.start_configs import checked, with_configs  # noqa: PLC0415

    configs = [
        StartConfig(name=name, check=partial(checked, name), default=config.default)
        for name, config in STARTUP_CONFIGS.items()
    ]
    resolution = Resolution(command, options.start_options, configs, elsewhere)
    path = options.config_file or os.environ.get(FILE_VARIABLE)
    if path:
        try:
            resolution.add_file(str(path), read_settings(_text(Path(path))))
        except SettingsFileError as error:
            raise SettingsError([f"{path}: {error}"]) from error
    resolution.add_environment(os.environ)
    resolution.add_flags(given_flags(options), options.config or ())
    found = resolution.settings()
    try:
        with_configs(BrokerSettings(), found.assignments)
    except InvalidConfigError as error:
        text = str(error)
        raise SettingsError([f"{text} ({found.sources_in(text)})"]) from error
    if found.options["dir"].value is None:
        raise SettingsError(
            [f"no directory: give --dir DIR, dir in the file, or {variable_of('dir')}"]
        )
    for option in options.start_options:
        setattr(options, option.attribute, found.options[option.name].value)
    options.config = list(found.assignments)
    return found


def _text(path: Path) -> str:
    """The text of the file, or a bit more than what is refused as too large.

    Raises:
        SettingsFileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES + 1).decode()
    except OSError as error:
        raise SettingsFileError(error.strerror or repr(error)) from error
    except UnicodeDecodeError as error:
        raise SettingsFileError("not UTF-8, as TOML is") from error
