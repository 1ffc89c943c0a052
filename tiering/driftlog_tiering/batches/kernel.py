"""The compiled kernel, or its slow twin where there is no compiler: one interface for both.

`kernel_py` documents each function.

Pure.
"""

import warnings

try:
    from driftlog_tiering.batches._kernel import (
        KeyMap,
        KeyRows,
        Rows,
        check,
        crc32c,
        decode,
        find_timestamp,
        max_timestamp,
        patch,
        scan,
    )

    COMPILED = True
except ImportError as error:
    from driftlog_tiering.batches.kernel_py import (  # type: ignore[assignment]
        KeyMap,
        KeyRows,
        Rows,
        check,
        crc32c,
        decode,
        find_timestamp,
        max_timestamp,
        patch,
        scan,
    )

    COMPILED = False
    warnings.warn(
        f"driftlog runs without its compiled kernel ({error}): a hundred times slower. "
        "Install a C compiler and install driftlog again.",
        RuntimeWarning,
        stacklevel=2,
    )

__all__ = [
    "COMPILED",
    "KeyMap",
    "KeyRows",
    "Rows",
    "check",
    "crc32c",
    "decode",
    "find_timestamp",
    "max_timestamp",
    "patch",
    "scan",
]
