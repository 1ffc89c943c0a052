"""Build hook: compile the record kernel in place and put it into the wheel.

    tiering/driftlog_tiering/batches/_kernel.pyx ──cython──▶ .c ──cc -O3──▶ _kernel.<abi>.so

In place, so that an editable install (whose .pth names the source folders) finds it.  Where
nothing can compile C against Python's headers, the wheel is built without it and says so:
`batches/kernel` then falls back on its Python twin, 20 to 80 times slower.  Where the
compiler works and the kernel does not compile, the build fails: that is a bug.
"""

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("tiering", "driftlog_tiering", "batches")
MODULE = "driftlog_tiering.batches._kernel"

# No -march=native: a wheel runs on machines other than the one that built it.
COMPILE_ARGS = ["-O3", "-fno-strict-aliasing", "-Wno-unused-function"]

NO_COMPILER = """
****************************************************************************************
driftlog: NO C COMPILER (or no Python headers) here, so its record kernel is not compiled.
Everything works, but sealing and reading segments are 20 to 80 times slower.
Install one and install driftlog again:
    Debian, Ubuntu:  apt-get install gcc libc6-dev python3-dev
    Fedora:          dnf install gcc python3-devel
    macOS:           xcode-select --install
What was tried: {reason}
****************************************************************************************
"""


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's `custom` hook of the wheel target, editable or not."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile when sources are newer; register the result unless the wheel is editable."""
        package = Path(self.root) / PACKAGE
        source = package / "_kernel.pyx"
        if not source.exists():
            return
        target = package / f"_kernel{sysconfig.get_config_var('EXT_SUFFIX')}"
        inputs = [source, Path(__file__), *package.glob("*.h"), *package.glob("*.px[di]")]
        if not target.exists() or target.stat().st_mtime < max(f.stat().st_mtime for f in inputs):
            reason = why_nothing_compiles()
            if reason is not None:
                self.app.display_warning(NO_COMPILER.format(reason=reason))
                target.unlink(missing_ok=True)  # It was built from other sources.
                return
            compile_kernel(source, target)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"][str(target)] = f"driftlog_tiering/batches/{target.name}"


def why_nothing_compiles() -> str | None:
    """Compile three lines that need Python's headers: None if that works, or what went wrong."""
    from setuptools import Extension  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "driftlog_probe.c")
        probe.write_text(
            "#include <Python.h>\n"
            'static struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "driftlog_probe"};\n'
            "PyMODINIT_FUNC PyInit_driftlog_probe(void) { return PyModule_Create(&d); }\n"
        )
        try:
            build(Extension("driftlog_probe", [str(probe)]), Path(folder))
        except Exception as error:  # noqa: BLE001 -- whatever a missing compiler is to setuptools
            return f"{type(error).__name__}: {error}"
    return None


def compile_kernel(source: Path, target: Path) -> None:
    """Cythonize and compile elsewhere, then replace *target* at once: it may be loaded now."""
    from Cython.Build import cythonize  # noqa: PLC0415
    from setuptools import Extension  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        extension = Extension(
            MODULE,
            [str(source)],
            include_dirs=[str(source.parent)],
            extra_compile_args=[] if sys.platform == "win32" else COMPILE_ARGS,
        )
        [translated] = cythonize(  # type: ignore[no-untyped-call]
            [extension],
            build_dir=folder,
            include_path=[str(source.parents[1])],
            language_level=3,
            quiet=True,
        )
        built = build(translated, Path(folder))
        staged = target.with_suffix(f".{os.getpid()}.tmp")
        shutil.copyfile(built, staged)
        staged.chmod(0o755)
        staged.replace(target)


def build(extension: Any, folder: Path) -> Path:
    """Compile and link *extension* under *folder*; return the shared object's path.

    Raises:
        Exception: setuptools' errors, when there is no compiler or it refuses.
    """
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    command = build_ext(Distribution({"name": "driftlog", "ext_modules": [extension]}))
    command.build_lib = str(folder / "lib")
    command.build_temp = str(folder / "temp")
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(extension.name))
