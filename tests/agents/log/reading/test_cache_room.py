"""If it broke, the cache of cold reads would grow over its budget, or evict what consumers read."""

from hypothesis import given, settings
from hypothesis import strategies as st

from driftlog_agents.log.reading.cache_room import CacheRoom

BUDGET_BYTES = 100
HOLD_MS = 50.0


def room_of(*keys: str, size_bytes: int = 50) -> CacheRoom[str, str]:
    """A room with *keys*, one used after the other, each ms."""
    room = CacheRoom[str, str](budget_bytes=BUDGET_BYTES, hold_ms=HOLD_MS)
    for now_ms, key in enumerate(keys):
        assert room.reserve(size_bytes, now_ms, forced=False)
        room.add(key, key.upper(), size_bytes, now_ms)
    return room


def test_what_is_being_read_stays_until_it_is_finished_or_idle() -> None:
    """
    A load waits until then, and is told when the first value is idle.
    """
    room = room_of("a", "b")

    assert not room.has_room(50, 10)
    assert not room.reserve(50, 10, forced=False)
    assert HOLD_MS == room.idle_ms()
    room.finish("b")
    assert room.has_room(50, 10)
    assert room.reserve(50, 10, forced=False)
    assert (True, False) == ("a" in room, "b" in room)


def test_a_finished_value_that_is_used_again_is_in_use() -> None:
    """
    Another reader is in it.
    """
    room = room_of("a", "b")
    room.finish("a")

    assert "A" == room.use("a", 10)

    assert not room.reserve(50, 11, forced=False)
    assert HOLD_MS + 1 == room.idle_ms()


def test_a_load_whose_patience_ended_evicts_the_value_that_was_used_first() -> None:
    """
    Else one consumer that stopped reading would hold the room for its time.
    """
    room = room_of("a", "b")
    room.use("a", 2)

    assert room.reserve(50, 3, forced=True)

    assert (True, False) == ("a" in room, "b" in room)


def test_loads_that_are_in_progress_are_never_evicted() -> None:
    """
    Their memory is taken: a load waits for them, also without patience.
    """
    room = CacheRoom[str, str](budget_bytes=BUDGET_BYTES, hold_ms=HOLD_MS)
    assert room.reserve(60, 0, forced=False)

    assert not room.reserve(60, 0, forced=True)
    assert room.idle_ms() is None
    room.release(60)
    assert room.reserve(60, 0, forced=False)


def test_a_value_larger_than_the_budget_is_loaded_alone() -> None:
    """
    Its reader must get it at some time.
    """
    room = room_of("a")
    room.finish("a")

    assert room.reserve(10 * BUDGET_BYTES, 1, forced=False)
    assert "a" not in room
    assert not room.reserve(1, 1, forced=True)


def test_a_value_that_takes_more_than_its_load_evicts_others() -> None:
    """
    Its size is known only then; loads in progress keep their room, and it stays itself.
    """
    room = room_of("a", "b", size_bytes=20)
    assert room.reserve(10, 2, forced=False)
    assert room.reserve(10, 2, forced=False)

    room.add("c", "C", 10, 3, 60)
    assert (90, False, True, True) == (room.used_bytes, *(key in room for key in "abc"))
    room.add("d", "D", 10, 4, 500)
    assert (500, "D") == (room.used_bytes, room.use("d", 5))
    assert "c" not in room
    assert room.reserve(10, 6, forced=True)
    assert 10 == room.used_bytes


def test_a_value_that_takes_less_than_its_load_gives_room_back() -> None:
    """
    Else footers, which are small, would fill the cache by their bound.
    """
    room = room_of("a")
    assert room.reserve(50, 1, forced=False)
    room.add("b", "B", 50, 1, 10)

    assert 60 == room.used_bytes
    assert room.has_room(40, 2)


steps_of = st.lists(
    st.tuples(
        st.sampled_from(("load", "load", "use", "finish", "fail", "add")),
        st.integers(0, 5),
        st.integers(1, 60),
        st.booleans(),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(steps=steps_of)
def test_the_budget_holds_in_every_sequence(steps: list[tuple[str, int, int, bool]]) -> None:
    """
    Values, and loads in progress, together; and what was used within the hold is evicted only by a
    load whose patience ended.
    """
    room = CacheRoom[int, int](budget_bytes=BUDGET_BYTES, hold_ms=HOLD_MS)
    loading: dict[int, int] = {}
    sizes: dict[int, int] = {}
    in_use: dict[int, float] = {}
    now_ms = 0.0
    for step, key, size, forced in steps:
        now_ms += size
        match step:
            case "load" if key not in room and key not in loading:
                held = [k for k, at in in_use.items() if now_ms - at < HOLD_MS and k in room]
                if room.reserve(size, now_ms, forced=forced):
                    loading[key] = size
                assert forced or all(k in room for k in held)
            case "add" if key in loading:
                sizes[key] = loading.pop(key)
                room.add(key, key, sizes[key], now_ms)
                in_use[key] = now_ms
            case "fail" if key in loading:
                room.release(loading.pop(key))
            case "use" if key in room:
                assert key == room.use(key, now_ms)
                in_use[key] = now_ms
            case "finish":
                room.finish(key)
                in_use.pop(key, None)
            case _:
                continue
        held_bytes = sum(sizes[k] for k in range(6) if k in room)
        assert room.used_bytes == held_bytes + sum(loading.values()) <= BUDGET_BYTES
