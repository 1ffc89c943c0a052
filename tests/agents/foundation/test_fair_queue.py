"""The fair queue: nobody waits for what others have sent, but for what they may have next."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.foundation.fair_queue import Address, Client, FairQueue


def clients(address: Address, count: int) -> list[Client]:
    """So many of one address."""
    return [Client(address) for _ in range(count)]


def test_one_address_waits_for_one_client_of_another() -> None:
    """
    A thousand clients wait; the one of another address that comes last is the first or the second.
    """
    queue = FairQueue[str](1.0)
    for number, client in enumerate(clients(Address("many"), 1_000)):
        queue.add(client, f"many-{number}")
    queue.add(Client(Address("one")), "one")

    first = [queue.take(1.0)[1] for _ in range(2)]

    assert "one" in first


def test_of_one_address_who_asks_now_and_then_goes_before_who_asks_all_the_time() -> None:
    """
    Ten clients of one address wait again as soon as they were served; an eleventh comes when each
    has had hundreds of turns, and is served next.
    """
    address, queue = Address("all"), FairQueue[Client](1.0)
    crowd = clients(address, 10)
    for client in crowd:
        queue.add(client, client)
    for _ in range(5_005):
        client, item = queue.take(1.0)
        queue.add(client, item)

    late = Client(address)
    queue.add(late, late)
    _, first = queue.take(1.0)
    _, second = queue.take(1.0)

    assert late in (first, second)


def test_silence_is_not_saved_up() -> None:
    """
    An address that was silent while another spent an hour does not have the next hour for itself.
    """
    queue = FairQueue[int](1.0)
    busy, silent = Client(Address("busy")), Client(Address("silent"))
    for number in range(3_600):
        queue.add(busy, number)
        queue.take(1.0)
    for number in range(20):
        queue.add(busy, number)
        queue.add(silent, 100 + number)

    first = Counter(queue.take(1.0)[1] >= 100 for _ in range(20))

    assert abs(first[True] - first[False]) <= 4


def test_what_is_removed_is_not_taken_and_may_come_again() -> None:
    """
    Also where it is the only one of its address; the same item twice is there once.
    """
    queue = FairQueue[str](1.0)
    one, other = Client(Address("one")), Client(Address("other"))
    queue.add(one, "gone")
    queue.add(one, "gone")
    queue.add(other, "there")
    queue.remove("gone")
    taken = [queue.take(0.0)[1]]
    empty = not queue
    queue.add(one, "gone")
    taken.append(queue.take(0.0)[1])

    assert empty
    assert not queue
    assert ["there", "gone"] == taken


@given(
    st.lists(st.tuples(st.sampled_from("atr"), st.integers(0, 3), st.integers(0, 20)), max_size=200)
)
def test_every_item_is_taken_once(steps: list[tuple[str, int, int]]) -> None:
    """
    Whatever is added, taken and removed in between, what waits is what was added last.
    """
    queue = FairQueue[int](1.0)
    addresses = [Address("a"), Address("b")]
    all_clients = [Client(addresses[n % 2]) for n in range(4)]
    waiting: dict[int, Client] = {}
    for step, number, item in steps:
        if step == "a":
            queue.add(all_clients[number], item)
            waiting.setdefault(item, all_clients[number])
        elif step == "r":
            queue.remove(item)
            waiting.pop(item, None)
        elif waiting:
            client, taken = queue.take(1.0)
            assert waiting.pop(taken) is client
    while waiting:
        client, taken = queue.take(1.0)
        assert waiting.pop(taken) is client

    assert not queue
