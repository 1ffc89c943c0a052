"""The fair queue: a client waits for its own share, never for what other clients have queued."""

from collections import Counter
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.foundation.fair_queue import Client, FairQueue

T = TypeVar("T")


def take(queue: FairQueue[T]) -> tuple[Client, T]:
    """Who is next, and has one."""
    client, item = queue.take()
    queue.spend(client, 1.0)
    return client, item


def clients(address: str, count: int) -> list[Client]:
    """So many of one address."""
    return [Client(address) for _ in range(count)]


def test_one_address_waits_for_one_client_of_another() -> None:
    """
    A thousand clients wait; the one of another address that comes last is the first or the second.
    """
    queue = FairQueue[str](1.0)
    for number, client in enumerate(clients("many", 1_000)):
        queue.add(client, f"many-{number}")
    queue.add(Client("one"), "one")

    first = [take(queue)[1] for _ in range(2)]

    assert "one" in first


def test_of_one_address_who_asks_now_and_then_goes_before_who_asks_all_the_time() -> None:
    """
    Ten clients of one address wait again as soon as they were served; an eleventh comes when each
    has had hundreds of turns, and is served next.
    """
    address, queue = "all", FairQueue[Client](1.0)
    crowd = clients(address, 10)
    for client in crowd:
        queue.add(client, client)
    for _ in range(5_005):
        client, item = take(queue)
        queue.add(client, item)

    late = Client(address)
    queue.add(late, late)
    _, first = take(queue)
    _, second = take(queue)

    assert late in (first, second)


def test_silence_is_not_saved_up() -> None:
    """
    An address that was silent while another spent an hour does not have the next hour for itself.
    """
    queue = FairQueue[int](1.0)
    busy, silent = Client("busy"), Client("silent")
    for number in range(3_600):
        queue.add(busy, number)
        take(queue)
    for number in range(20):
        queue.add(busy, number)
        queue.add(silent, 100 + number)

    first = Counter(take(queue)[1] >= 100 for _ in range(20))

    assert abs(first[True] - first[False]) <= 4


def test_what_is_removed_is_not_taken_and_may_come_again() -> None:
    """
    Also where it is the only one of its address; the same item twice is there once.
    """
    queue = FairQueue[str](1.0)
    one, other = Client("one"), Client("other")
    queue.add(one, "gone")
    queue.add(one, "gone")
    queue.add(other, "there")
    queue.remove("gone")
    taken = [queue.take()[1]]
    empty = not queue
    queue.add(one, "gone")
    taken.append(queue.take()[1])

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
    addresses = ["a", "b"]
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
            client, taken = take(queue)
            assert waiting.pop(taken) is client
    while waiting:
        client, taken = take(queue)
        assert waiting.pop(taken) is client

    assert not queue


def test_who_leaves_is_forgotten() -> None:
    """
    A hundred thousand clients of an address whose turn does not come wait and leave, while another
    address is served; then a hundred thousand addresses are served once: what is kept is bounded.
    """
    queue = FairQueue[object](1.0)
    queue.add(Client("loved"), "waits")
    queue.spend(Client("churn"), 1e9)
    for number in range(100_000):
        queue.add(Client("churn"), number)
        queue.remove(number)
    left = queue.size
    for number in range(100_000):
        queue.add(Client(f"a{number}"), number)
        take(queue)

    assert left < 500
    assert queue.size < 25_000


def test_who_has_had_much_waits_until_the_others_have_had_as_much_and_no_longer() -> None:
    """
    What a client had while nobody else waited does not count: it is served among the others.
    """
    queue = FairQueue[str](1.0)
    busy, others = Client("busy"), clients("others", 3)
    for number in range(1_000):
        queue.add(busy, f"busy-{number}")
        take(queue)
    for other in others:
        queue.add(other, f"other-{id(other)}")
    queue.add(busy, "busy")

    served = [take(queue)[1] for _ in range(4)]

    assert "busy" in served


def test_items_of_one_client_do_not_go_all_before_those_of_another() -> None:
    """
    A hundred items of one client, then one of another of its address: that is the second or third.
    """
    queue = FairQueue[int](1.0)
    many, one = clients("all", 2)
    for number in range(100):
        queue.add(many, number)
    queue.add(one, 100)

    assert 100 in [take(queue)[1] for _ in range(3)]


def test_accounts_of_a_hundred_thousand_connections_are_forgotten() -> None:
    """
    100,000 connections of one address, and then one of each of 100,000 addresses, ask once each
    while another client waits all the time: the queue holds few accounts, not one for each.
    """
    queue = FairQueue[Client](1.0)
    waiting = Client("waiting")
    queue.add(waiting, waiting)
    queue.take()
    queue.add(waiting, waiting)
    queue.spend(waiting, 1e12)
    sizes = []
    addresses = ["crowd"] * 100_000 + [f"address-{number}" for number in range(100_000)]
    for number, address in enumerate(addresses):
        client = Client(address)
        queue.add(client, client)
        took, _ = queue.take()
        queue.spend(took, 1e6)
        if number % 1_000 == 0:
            sizes.append(queue.size)

    assert max(sizes) < 25_000
