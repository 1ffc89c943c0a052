"""What is given to another thread, so that the event loop goes on.

Pure.
"""

from collections.abc import Awaitable, Callable
from typing import Any

Offload = Callable[..., Awaitable[Any]]
"""``await offload(fn, *args)`` runs *fn* off the event loop, and gives or raises what it does."""


async def inline(fn: Callable[..., Any], *args: Any) -> Any:
    """An `Offload` that runs *fn* on the event loop: for what is small, and for tests."""
    return fn(*args)
