"""If it failed: the cache of footers would outgrow its budget, or lose what is used most."""

from driftlog_agents.log.objects.encoded_footers import EncodedFooters


def kept(cache: EncodedFooters, names: str) -> str:
    """Which of *names* it has; looking counts as a use."""
    return "".join(name for name in names if cache.get(name) is not None)


def test_what_is_unused_longest_goes_first() -> None:
    """
    Within the budget nothing goes.
    """
    cache = EncodedFooters(10)
    for name in "abc":
        cache.keep(name, b"123")
    cache.get("a")
    cache.keep("d", b"1234")

    assert ("acd", 10) == (kept(cache, "abcd"), cache.size_bytes)


def test_a_footer_over_the_budget_is_not_kept_and_replaces_none() -> None:
    """
    But the one of its own key, which it would contradict.
    """
    cache = EncodedFooters(10)
    cache.keep("a", b"123")
    cache.keep("b", b"x" * 11)
    cache.keep("c", b"1")
    cache.keep("c", b"x" * 11)

    assert ("a", 3) == (kept(cache, "abc"), cache.size_bytes)


def test_size_follows_replaced_dropped_and_inherited_entries() -> None:
    """
    A drop of what is not kept changes nothing.
    """
    before, cache = EncodedFooters(10), EncodedFooters(5)
    before.keep("a", b"1234")
    before.keep("b", b"12")
    before.keep("b", b"123")
    before.drop("x")
    cache.inherit(before)

    assert (7, 3, "b") == (before.size_bytes, cache.size_bytes, kept(cache, "ab"))
    cache.drop("b")
    assert 0 == cache.size_bytes
