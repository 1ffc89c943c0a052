"""If it failed: a start would delete batches that no other folder has, or keep foreign files."""

from driftlog_agents.log.local.directory_names import (
    file_name,
    file_numbers,
    is_session,
    says_whole,
    tightened,
)
from driftlog_agents.log.local.leftovers import Leftovers

SESSION = "0123456789abcdef" * 2


def test_only_sessions_folders_and_numbered_files_are_known() -> None:
    """
    In the order of their numbers; whatever else a user puts there is not touched.
    """
    foreign = ["x.buf", "1.buf.tmp", "leftovers.json", "-1.buf"]

    assert is_session(SESSION)
    assert not any(map(is_session, ["", SESSION[1:], SESSION.upper(), f".{SESSION}.part"]))
    assert [2, 10, 12_345_678_901] == file_numbers(
        [file_name(10), *foreign, file_name(2), file_name(12_345_678_901)]
    )


def test_a_folder_is_whole_if_its_note_says_that_it_was_set_aside() -> None:
    """
    The note of a session's own folder, none, and a damaged one do not.
    """
    whole = Leftovers(SESSION, set_aside_at_ms=5).encode()

    assert says_whole(whole)
    assert not any(map(says_whole, [Leftovers(SESSION).encode(), None, b"{", whole[:-3]]))


def test_the_access_of_other_users_is_taken_and_nothing_else() -> None:
    """
    Files of an earlier release were made with it.
    """
    assert [0o700, 0o600, None, None] == [tightened(m) for m in (0o755, 0o640, 0o700, 0o400)]
