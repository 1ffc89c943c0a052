"""Sizes, and types that stand for one thing in every folder of agents and tiering.

Pure.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

KiB: Final = 1024
MiB: Final = 1024 * KiB
GiB: Final = 1024 * MiB

Buffer = bytes | bytearray | memoryview

Offload = Callable[..., Awaitable[Any]]
"""``await offload(fn, *args)`` runs *fn* off the event loop, and returns or raises what it does."""
