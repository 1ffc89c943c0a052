"""One request for all callers that want the same answer at the same time.

    do ──▶ no request for this key: make it ──▶ the answer, or its error ──▶ all waiting callers
     └───▶ one is under way: wait for it ─────╳ cancelled: one waiting caller makes it again

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Requests under way, by key."""

    __slots__ = ("_flights",)

    def __init__(self) -> None:
        self._flights: dict[K, asyncio.Future[T]] = {}

    async def do(self, key: K, request: Callable[[], Awaitable[T]]) -> T:
        """The answer to *request*, or to the one for *key* that is under way.

        Several callers may make a request one after the other, when the first is cancelled: a
        *request* that fills a cache checks the cache first.

        Raises: what the request raises, for all callers that wait for it.
        """
        while (flight := self._flights.get(key)) is not None:
            await asyncio.wait((flight,))
            if not flight.cancelled():
                return flight.result()
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        try:
            answer = await request()
        except Exception as error:
            flight.set_exception(error)
            flight.exception()  # else asyncio logs a lost error when no caller waits
            raise
        except BaseException:
            flight.cancel()
            raise
        else:
            flight.set_result(answer)
            return answer
        finally:
            del self._flights[key]
