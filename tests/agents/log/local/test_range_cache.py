"""A consumer gets bytes of another object or damaged ones from the local disk, the cache fills the
disk, or a broken disk fails a read that the bucket could answer."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from driftlog_agents.log.local.range_cache import PAUSE_S, RESERVE_BYTES, SLOWEST_S, RangeCache

KEY = "topics/t/0/segment"
BODY = Random(1).randbytes(5_000)
PLENTY = 100_000


def opened(
    folder: Path,
    budget_bytes: int = PLENTY,
    free_bytes: int = 2 * RESERVE_BYTES,
    slowest_s: float = SLOWEST_S,
) -> RangeCache:
    return RangeCache(folder / "reads", budget_bytes, lambda _: free_bytes, slowest_s=slowest_s)


def stored(folder: Path, *numbers: int, budget_bytes: int = PLENTY) -> None:
    """A cache that was closed, with one entry for each number."""
    cache = opened(folder, budget_bytes)
    for number in numbers:
        cache.put(KEY, number, number + len(BODY), BODY)
    cache.close()


def files(folder: Path) -> list[Path]:
    return list((folder / "reads").iterdir())


async def there(cache: RangeCache, *numbers: int) -> list[bool]:
    """Which of the entries it has."""
    return [await cache.get(KEY, n, n + len(BODY)) == BODY for n in numbers]


async def test_entries_survive_a_restart(tmp_path: Path) -> None:
    """
    With the range that was stored, and no other one of the object.
    """
    stored(tmp_path, 7)
    cache = opened(tmp_path)

    assert BODY == await cache.get(KEY, 7, 7 + len(BODY))
    assert None is await cache.get(KEY, 8, 8 + len(BODY))
    assert None is await cache.get(KEY, 7, 6 + len(BODY))
    assert None is await cache.get("topics/t/0/other", 7, 7 + len(BODY))
    assert (1, 3, 0) == (cache.hits, cache.misses, cache.damaged)
    cache.close()


def flipped(entry: bytes) -> bytes:
    return entry[:-9] + bytes([entry[-9] ^ 1]) + entry[-8:]


def cut(entry: bytes) -> bytes:
    return entry[:-1]


def emptied(entry: bytes) -> bytes:
    return b""


def of_another_object(entry: bytes) -> bytes:
    return entry.replace(b"/segment", b"/sigment")


@pytest.mark.parametrize("damage", [flipped, cut, emptied, of_another_object])
async def test_damaged_entries_are_deleted(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """
    A flipped bit, a torn file, an empty one, or one of another object: the bucket is read.
    """
    stored(tmp_path, 0)
    (file,) = files(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    cache = opened(tmp_path)
    found = await cache.get(KEY, 0, len(BODY))
    cache.close()

    assert None is found
    assert 1 == cache.damaged
    assert [] == files(tmp_path)


async def test_the_oldest_read_goes_first(tmp_path: Path) -> None:
    """
    Within the budget, also after a restart with a smaller one.
    """
    budget = int(3.5 * len(BODY))
    stored(tmp_path, 1, 2, 3, budget_bytes=budget)
    cache = opened(tmp_path, budget)
    assert [True] == await there(cache, 1)
    cache.put(KEY, 4, 4 + len(BODY), BODY)
    assert [True, False, True, True] == await there(cache, 1, 2, 3, 4)
    cache.close()
    assert sum(file.stat().st_size for file in files(tmp_path)) == cache.used_bytes <= budget
    smaller = opened(tmp_path, int(1.5 * len(BODY)))

    assert [False, False, False, True] == await there(smaller, 1, 2, 3, 4)
    smaller.close()


async def test_unfinished_entries_of_a_killed_agent_are_deleted(tmp_path: Path) -> None:
    """
    They count for nothing.
    """
    stored(tmp_path, 1)
    (file,) = files(tmp_path)
    file.with_suffix(".new").write_bytes(file.read_bytes()[:100])
    cache = opened(tmp_path)

    assert [True] == await there(cache, 1)
    cache.close()
    assert [file] == files(tmp_path)


async def test_a_full_disk_is_left_to_buffer_files(tmp_path: Path) -> None:
    """
    Nothing is stored on it.
    """
    cache = opened(tmp_path, free_bytes=RESERVE_BYTES)
    cache.put(KEY, 0, len(BODY), BODY)
    cache.close()

    assert [] == files(tmp_path)


async def test_a_faulty_disk_fails_no_read(tmp_path: Path) -> None:
    """
    The cache has nothing, and asks the disk again after its pause.
    """
    stored(tmp_path, 0)
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    file.unlink()
    file.mkdir()  # reading it is an error
    now_s = 0.0
    cache = RangeCache(tmp_path / "reads", PLENTY, lambda _: 0, lambda: now_s)
    broken = await cache.get(KEY, 0, len(BODY))
    file.rmdir()
    file.write_bytes(whole)
    paused = await cache.get(KEY, 0, len(BODY))
    now_s = PAUSE_S
    repaired = await cache.get(KEY, 0, len(BODY))
    cache.close()

    assert (None, None, BODY) == (broken, paused, repaired)


async def test_a_disk_that_hangs_delays_one_read(tmp_path: Path) -> None:
    """
    For a moment; the others do not ask it.
    """
    hangs = threading.Event()
    stored(tmp_path, 0)
    cache = RangeCache(
        tmp_path / "reads",
        PLENTY,
        lambda _: int(hangs.wait()) + 2 * RESERVE_BYTES,
        slowest_s=0.01,
    )
    cache.put(KEY, 1, 1 + len(BODY), BODY)
    delayed = await there(cache, 0)
    others = await there(cache, 0)
    for number in range(100):
        cache.put(KEY, number, number + len(BODY), BODY)
    hangs.set()
    cache.close()

    assert ([False], [False]) == (delayed, others)
    assert 1 == cache.misses
    assert 2 == len(files(tmp_path))


async def test_a_disk_with_much_to_do_is_not_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The first reads wait for their turn; the last ones go to the bucket, and the cache stays on.
    """
    numbers = range(10)
    for number in numbers:
        stored(tmp_path, number)
    cache = opened(tmp_path, slowest_s=0.4)
    assert [True] == await there(cache, 0)
    read_bytes = Path.read_bytes

    def slowly(path: Path) -> bytes:
        time.sleep(0.15)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", slowly)
    found = [one for (one,) in await asyncio.gather(*(there(cache, n) for n in numbers))]
    again = await there(cache, numbers[-1])
    cache.close()

    assert found[:3] == [True] * 3
    assert [True] == again
