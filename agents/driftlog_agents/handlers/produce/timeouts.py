"""Answers Produce requests whose timeout passes before their batches are committed.

    acks=all  ──▶ timed from the start
    acks=1    ──▶ timed once the disk did not take a batch, which then waits for the commit

Shell.
"""

from collections import deque
from typing import Final, Protocol

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.network.slots import Slot

_ANSWERED: Final = 20_000
"""Some MB of memory.  More: more memory; less: requests that still wait are looked at more
often."""

_LEAST_MS: Final = 1_000
"""A timeout of 0 or less.  Kafka with one replica has committed such a request before it looks at
its timeout; here a commit is a PUT.  Longer: a client that wants no wait has a longer one where the
bucket is slow; shorter: it is told of a timeout, and the records are in the log a moment later."""


class TimedRequest(Protocol):
    """A request that waits for the outcome of its batches."""

    done: bool

    def time_out(self) -> None:
        """Answer the open partitions with REQUEST_TIMED_OUT."""


class ProduceTimeouts:
    """The timeouts of one agent's Produce requests.

    Args:
        broker: the agent that received the requests.
        answered: so many requests are timed, at least, before the answered ones are dropped.
    """

    def __init__(self, broker: Broker, answered: int = _ANSWERED) -> None:
        self.broker = broker
        self._answered = answered
        self._due: dict[int, deque[tuple[float, list[TimedRequest]]]] = {}
        """(time in ms, requests), by timeout in ms; requests of one read of a socket share an
        entry."""
        self._timed = 0
        """Requests since the answered ones were dropped."""
        self._most = answered
        """As many as were left then, or more: a request is looked at twice on average."""

    def expect(self, slot: Slot, pending: TimedRequest, timeout_ms: int) -> None:
        """Answer *pending* *timeout_ms* after *slot*'s connection last received bytes."""
        self._timed += 1
        if timeout_ms <= 0:
            timeout_ms = _LEAST_MS
        due = self._due.get(timeout_ms)
        if due is None:
            due = self._due[timeout_ms] = deque()
        at_ms = slot.connection.source.heard_ms + timeout_ms
        if due and due[-1][0] >= at_ms:
            due[-1][1].append(pending)
        else:
            due.append((at_ms, [pending]))

    def sweep(self, now_ms: float) -> None:
        """Answer requests whose timeout has passed; call it a few times a second."""
        for timeout_ms in list(self._due):
            due = self._due[timeout_ms]
            while due and (due[0][0] <= now_ms or all(pending.done for pending in due[0][1])):
                for pending in due.popleft()[1]:
                    if not pending.done:
                        pending.time_out()
            if not due:
                del self._due[timeout_ms]
        if self._timed >= self._most:
            self._drop_answered()

    def _drop_answered(self) -> None:
        """Drop answered requests also behind one that waits for long."""
        left = 0
        for timeout_ms, due in self._due.items():
            open_ones = deque[tuple[float, list[TimedRequest]]]()
            for at_ms, requests in due:
                waiting = [request for request in requests if not request.done]
                if waiting:
                    open_ones.append((at_ms, waiting))
                    left += len(waiting)
            self._due[timeout_ms] = open_ones
        self._timed, self._most = 0, max(self._answered, left)
