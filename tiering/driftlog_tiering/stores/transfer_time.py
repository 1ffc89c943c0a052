"""How long the bytes of a request may take, beside the deadline of a request without any.

Pure.
"""

from typing import Final

_SLOWEST_BYTES_PER_S: Final = 1024 * 1024


def transfer_s(size_bytes: int) -> float:
    """Seconds for *size_bytes* at 1 MiB/s: a slower uplink keeps up with nothing worth sealing."""
    return size_bytes / _SLOWEST_BYTES_PER_S
