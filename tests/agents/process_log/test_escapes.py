"""Text of clients cannot forge, or break, a line of the log."""

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.process_log.escapes import (
    CLIENT_CHARACTERS,
    escaped,
    escaped_line,
    escaped_traceback,
)


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    """
    No control, no line end, nothing that turns the direction of text, nothing that UTF-8 lacks.
    """
    shown = escaped(text, 200)

    assert "\n" not in escaped(text, 200)
    assert 1 >= len(shown.splitlines())
    assert not [c for c in shown if c < " " or "\x7f" <= c <= "\x9f" or "\u202a" <= c <= "\u202e"]
    assert shown == shown.encode().decode()


def test_what_can_be_seen_stays() -> None:
    """
    ESC and BEL are shown as what they are; letters of any script are not touched.
    """
    assert "a\\x1b]0;b\\x07 žluť 日本" == escaped("a\x1b]0;b\x07 žluť 日本", 200)


def test_a_string_of_a_client_is_cut_and_an_advice_is_not() -> None:
    """
    In a line with a client every string may be the client's, but what the agent advises.
    """
    long = "x" * 32_000
    advice = "y" * 1_000

    line = escaped_line({"event": "e", "client": "h:1", "error": long, "advice": advice, "n": 7})

    assert f"{'x' * CLIENT_CHARACTERS}… (31800 more characters)" == line["error"]
    assert (advice, 7) == (line["advice"], line["n"])


def test_a_group_id_is_cut_in_lines_without_a_client() -> None:
    """
    Names that clients choose are known by their keys.
    """
    assert 250 > len(escaped_line({"event": "e", "group": "g" * 32_000})["group"])


def test_no_line_of_a_traceback_passes_for_a_line_of_the_log() -> None:
    """
    An error's message may hold newlines: each line is indented.
    """
    shown = escaped_traceback("ValueError: a\n2026-01-01T00:00:00 [error] forged\x1b[2J")

    assert ["  ValueError: a", "  2026-01-01T00:00:00 [error] forged\\x1b[2J"] == shown.split("\n")
