"""Work for another thread, while the event loop continues.

Pure.
"""

from collections.abc import Awaitable, Callable
from typing import Any

Offload = Callable[..., Awaitable[Any]]
"""``await offload(fn, *args)`` runs *fn* off the event loop, and returns or raises what it does."""


async def inline(fn: Callable[..., Any], *args: Any) -> Any:
    """An `Offload` that runs *fn* on the event loop: for small work, and for tests."""
    return fn(*args)
