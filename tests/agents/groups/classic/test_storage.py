"""What a classic group does while something is stored, when it is not, and after a restore.

Transcripts that no client can have of Apache Kafka: see `classic_scripts` for the language, and
`classic_machine` for the store's part.
Shell.
"""

from typing import Final

import pytest

from tests.agents.groups.classic_machine import MachineWorld
from tests.agents.groups.classic_scripts import lines_of, play
from tests.agents.groups.classic_transcripts import SETTINGS, TRANSCRIPTS

STORE: Final = {
    "an assignment is told when it is stored": """
        @two
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        b > sync 3 gen=3 member=b1
        store > holds 0
        a > sync 3 gen=3 member=a1 a1=X b1=Z
        b > heartbeat 3 gen=3 member=b1
        b < heartbeat
        x > describe 5
        x < describe state=CompletingRebalance type=consumer members=a1:a::X,b1:b::Y
        store > stores 0
        a < sync assignment=X
        b < sync assignment=Z
        x > describe 5
        x < describe state=Stable type=consumer protocol=range members=a1:a:A:X,b1:b:B:Z
    """,
    "an assignment that is not stored is told to nobody": """
        @two
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        b > sync 3 gen=3 member=b1
        store > holds 0
        a > sync 3 gen=3 member=a1 a1=X b1=Z
        store > fails 0
        a < sync COORDINATOR_NOT_AVAILABLE
        b < sync COORDINATOR_NOT_AVAILABLE
        a > heartbeat 3 gen=3 member=a1
        a < heartbeat REBALANCE_IN_PROGRESS
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=4 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=4 protocol=range leader=a1 member=b1
    """,
    "a leader that assigns twice has assigned once": """
        @two
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        store > holds 0
        a > sync 3 gen=3 member=a1 a1=X b1=Z
        y > sync 3 gen=3 member=a1 a1=other b1=other
        a < sync REBALANCE_IN_PROGRESS
        store > stores 0
        y < sync assignment=X
        b > sync 3 gen=3 member=b1
        b < sync assignment=Z
    """,
    "an assignment of a generation that is over is told to nobody": """
        @two
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        store > holds 0
        a > sync 3 gen=3 member=a1 a1=X b1=Z
        b > join 5 member=b1 range=B2
        a < sync REBALANCE_IN_PROGRESS
        a > join 5 member=a1 range=A
        a < join gen=4 protocol=range leader=a1 member=a1 members=a1:A,b1:B2
        b < join gen=4 protocol=range leader=a1 member=b1
        a > sync 3 gen=4 member=a1 a1=X4 b1=Z4
        store > stores 0
        a < sync assignment=X4
        b > sync 3 gen=4 member=b1
        b < sync assignment=Z4
    """,
    "who leaves while its assignment is stored is answered": """
        @two
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        b > sync 3 gen=3 member=b1
        store > holds 0
        a > sync 3 gen=3 member=a1 a1=X b1=Z
        x > leave 3 b1
        a < sync REBALANCE_IN_PROGRESS
        b < sync UNKNOWN_MEMBER_ID
        x < leave members=b1:NONE
        store > stores 0
        a > join 5 member=a1 range=A
        a < join gen=4 protocol=range leader=a1 member=a1 members=a1:A
    """,
    "who joins or syncs again is answered twice": """
        @two
        a > join 5 member=a1 range=A
        y > join 5 member=a1 range=A
        a < join REBALANCE_IN_PROGRESS member=a1
        b > join 5 member=b1 range=B
        b < join gen=3 protocol=range leader=a1 member=b1
        y < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b > sync 3 gen=3 member=b1
        z > sync 3 gen=3 member=b1
        b < sync REBALANCE_IN_PROGRESS
        a > sync 3 gen=3 member=a1 a1=X b1=Z
        a < sync assignment=X
        z < sync assignment=Z
    """,
    "the last one is gone when that is stored": """
        @one
        store > holds 0
        a > leave 3 a1
        x > describe 5
        x < describe state=Empty type=consumer
        b > leave 3 a1
        b < leave members=a1:UNKNOWN_MEMBER_ID
        store > stores 0
        a < leave members=a1:NONE
    """,
    "the last one is gone though that is not stored": """
        @one
        store > holds 0
        a > leave 3 a1
        store > fails 0
        a < leave COORDINATOR_NOT_AVAILABLE
        x > describe 5
        x < describe state=Empty type=consumer
    """,
    "a static member is told of its new id when that is stored": """
        @static
        store > holds 0
        b > join 9 instance=j range=B2
        b > heartbeat 3 gen=2 member=b1 instance=j
        b < heartbeat FENCED_INSTANCE_ID
        store > stores 0
        b < join gen=2 type=consumer protocol=range leader=a1 member=b2
        b > heartbeat 3 gen=2 member=b2 instance=j
        b < heartbeat
        store > restores 0
        b > heartbeat 3 gen=2 member=b2 instance=j
        b < heartbeat
        x > describe 5
        x < describe state=Stable type=consumer protocol=range members=a1/i:a:A:X,b2/j:b:B2:Y
    """,
    "a static member whose new id is not stored has the one that it had": """
        @static
        store > holds 0
        a > join 9 instance=i range=A2 session=50000
        store > fails 0
        a < join COORDINATOR_NOT_AVAILABLE gen=2 type=consumer protocol=range leader=a1
        a > heartbeat 3 gen=2 member=a1 instance=i
        a < heartbeat
        x > describe 5
        x < describe state=Stable type=consumer protocol=range members=a1/i:a:A:X,b1/j:b:B:Y
    """,
    "a static member comes back twice while it is stored": """
        @static
        store > holds 0
        b > join 9 instance=j range=B
        y > join 9 instance=j range=B
        b < join FENCED_INSTANCE_ID protocol=null member=b2
        store > stores 0
        y < join gen=2 type=consumer protocol=range leader=a1 member=y1
        b > heartbeat 3 gen=2 member=b1 instance=j
        b < heartbeat FENCED_INSTANCE_ID
        y > heartbeat 3 gen=2 member=y1 instance=j
        y < heartbeat
    """,
    "a rebalance begins while a static member's return is stored": """
        @static
        store > holds 0
        b > join 9 instance=j range=B
        a > join 5 member=a1 instance=i range=A
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1/i:A,b2/j:B
        b < join gen=3 type=consumer protocol=range leader=a1 member=b2
        store > stores 0
    """,
    "a rebalance begins while a static member's return is not stored": """
        @static
        store > holds 0
        b > join 9 instance=j range=B
        c > join 5 instance=k range=C
        store > fails 0
        a > join 5 member=a1 instance=i range=A
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1/i:A,b2/j:B,c1/k:C
        b < join gen=3 type=consumer protocol=range leader=a1 member=b2
        c < join gen=3 protocol=range leader=a1 member=c1
    """,
    "a restored group goes on as it was": """
        @two
        store > restores 0
        a > heartbeat 3 gen=2 member=a1
        a < heartbeat
        b > sync 3 gen=2 member=b1
        b < sync assignment=Y
        b > join 5 member=b1 range=B
        b < join gen=2 protocol=range leader=a1 member=b1
        x > commit 7 gen=2 member=b1
        x < commit
        x > describe 5
        x < describe state=Stable type=consumer protocol=range members=a1:a:A:X,b1:b:B:Y
    """,
    "a restored group does not use again what may have been told": """
        @two
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        store > restores 0
        b > heartbeat 3 gen=3 member=b1
        b < heartbeat ILLEGAL_GENERATION
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=1001 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=1001 protocol=range leader=a1 member=b1
        store > restores 0
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=2001 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2001 protocol=range leader=a1 member=b1
    """,
    "sessions begin anew with a restore": """
        a > join 0 session=2000 range=A
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1:A
        a > sync 0 gen=1 member=a1 a1=X
        a < sync assignment=X
        wait 1500
        store > restores 0
        wait 1500
        a > heartbeat 0 gen=1 member=a1
        a < heartbeat
        store > restores 0
        wait 2500
        a > heartbeat 0 gen=1 member=a1
        a < heartbeat UNKNOWN_MEMBER_ID
    """,
    "an empty group is restored empty": """
        @one
        a > leave 3 a1
        a < leave members=a1:NONE
        store > restores 0
        x > describe 5
        x < describe state=Empty type=consumer
        a > join 5 range=A
        a < join MEMBER_ID_REQUIRED member=a2
        a > join 5 member=a2 range=A
        a < join gen=1001 protocol=range leader=a2 member=a2 members=a2:A
    """,
    "who waits is told that the group is another's": """
        @two
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        b > sync 3 gen=3 member=b1
        y > join 5 range=Y
        y < join MEMBER_ID_REQUIRED member=y1
        store > drops 0
        b < sync NOT_COORDINATOR
        a > heartbeat 3 gen=3 member=a1
        a < heartbeat COORDINATOR_NOT_AVAILABLE
        a > join 5 member=a1 range=A
        a < join COORDINATOR_NOT_AVAILABLE member=a1
        a > sync 3 gen=3 member=a1
        a < sync COORDINATOR_NOT_AVAILABLE
        a > leave 3 a1
        a < leave COORDINATOR_NOT_AVAILABLE
        a > commit 7 gen=3 member=a1
        a < commit COORDINATOR_NOT_AVAILABLE
    """,
    "who left is told that the group is another's": """
        @one
        store > holds 0
        a > leave 3 a1
        store > drops 0
        a < leave NOT_COORDINATOR
    """,
}


@pytest.mark.parametrize("name", STORE)
def test_the_store_answers_late_or_not_at_all(name: str) -> None:
    """Who is told what, and when."""
    transcript = STORE[name]

    written = play(transcript, MachineWorld(SETTINGS), TRANSCRIPTS)

    assert lines_of(transcript) == written
