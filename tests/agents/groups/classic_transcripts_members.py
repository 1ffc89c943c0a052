"""What clients of classic groups say and are told as members: see `classic_scripts`.

Seen and played as those of `classic_transcripts`.
Pure.
"""

from typing import Final

MEMBERS: Final = {
    # ── Syncing ──
    "syncing": """
        @two
        a > join 5 member=a1 range=A
        b > sync 3 gen=2 member=b1
        b < sync REBALANCE_IN_PROGRESS
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        b > sync 3 gen=2 member=b1
        b < sync ILLEGAL_GENERATION
        b > sync 3 gen=3 member=a2
        b < sync UNKNOWN_MEMBER_ID
        b > sync 5 gen=3 member=b1 type=connect protocol=range
        b < sync INCONSISTENT_GROUP_PROTOCOL
        b > sync 5 gen=3 member=b1 type=consumer protocol=other
        b < sync INCONSISTENT_GROUP_PROTOCOL
        b > sync 5 gen=3 member=b1 type=consumer
        b < sync INCONSISTENT_GROUP_PROTOCOL
        b > sync 5 gen=3 member=b1 protocol=range
        b < sync INCONSISTENT_GROUP_PROTOCOL
        b > sync 5 gen=3 member=b1 type=consumer protocol=range
        y > heartbeat 3 gen=3 member=b1
        y < heartbeat
        y > commit 7 gen=3 member=b1
        y < commit REBALANCE_IN_PROGRESS
        a > sync 5 gen=3 member=a1 type=consumer protocol=range a1=X b1=Y
        a < sync type=consumer protocol=range assignment=X
        b < sync type=consumer protocol=range assignment=Y
        b > sync 5 gen=3 member=b1 type=consumer protocol=range
        b < sync type=consumer protocol=range assignment=Y
        b > commit 7 gen=3 member=b1
        b < commit
        b > commit 7 gen=2 member=b1
        b < commit ILLEGAL_GENERATION
    """,
    "a rebalance begins while followers wait for the leader": """
        @two
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        b > sync 3 gen=3 member=b1
        a > leave 3 a1
        a < leave members=a1:NONE
        b < sync REBALANCE_IN_PROGRESS
        b > join 5 member=b1 range=B
        b < join gen=4 protocol=range leader=b1 member=b1 members=b1:B
    """,
    "who does not sync in time is removed": """
        @one
        a > join 5 member=a1 rebalance=4000 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A
        a > sync 3 gen=2 member=a1 a1=X
        a < sync assignment=X
        b > join 5 rebalance=4000 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 rebalance=4000 range=B
        a > join 5 member=a1 rebalance=4000 range=A
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        a > sync 3 gen=3 member=a1 a1=X b1=Y
        a < sync assignment=X
        wait 5500
        b > sync 3 gen=3 member=b1
        b < sync UNKNOWN_MEMBER_ID
        a > heartbeat 3 gen=3 member=a1
        a < heartbeat REBALANCE_IN_PROGRESS
        a > join 5 member=a1 range=A
        a < join gen=4 protocol=range leader=a1 member=a1 members=a1:A
    """,
    "a leader that does not sync in time is removed": """
        @one
        a > join 5 member=a1 rebalance=4000 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A
        a > sync 3 gen=2 member=a1 a1=X
        a < sync assignment=X
        b > join 5 rebalance=4000 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 rebalance=4000 range=B
        a > join 5 member=a1 rebalance=4000 range=A
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        b > sync 3 gen=3 member=b1
        wait 5500
        b < sync REBALANCE_IN_PROGRESS
        b > join 5 member=b1 rebalance=4000 range=B
        b < join gen=4 protocol=range leader=b1 member=b1 members=b1:B
        a > heartbeat 3 gen=3 member=a1
        a < heartbeat UNKNOWN_MEMBER_ID
    """,
    # ── Heartbeats and sessions ──
    "heartbeats": """
        @two
        a > heartbeat 3 gen=1 member=a1
        a < heartbeat ILLEGAL_GENERATION
        a > heartbeat 3 gen=3 member=a1
        a < heartbeat ILLEGAL_GENERATION
        a > heartbeat 3 gen=2 member=a1 instance=i
        a < heartbeat UNKNOWN_MEMBER_ID
        a > join 5 member=a1 range=A
        b > heartbeat 3 gen=2 member=b1
        b < heartbeat REBALANCE_IN_PROGRESS
        b > heartbeat 3 gen=1 member=b1
        b < heartbeat ILLEGAL_GENERATION
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        b > heartbeat 3 gen=3 member=b1
        b < heartbeat
        b > heartbeat 3 gen=2 member=b1
        b < heartbeat ILLEGAL_GENERATION
    """,
    "who falls silent is removed": """
        @one
        b > join 5 session=6000 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 session=6000 range=B
        a > join 5 member=a1 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2 protocol=range leader=a1 member=b1
        a > sync 3 gen=2 member=a1 a1=X b1=Y
        a < sync assignment=X
        b > sync 3 gen=2 member=b1
        b < sync assignment=Y
        wait 3500
        b > heartbeat 3 gen=2 member=b1
        b < heartbeat
        wait 3500
        b > heartbeat 3 gen=2 member=b1
        b < heartbeat
        wait 7500
        b > heartbeat 3 gen=2 member=b1
        b < heartbeat UNKNOWN_MEMBER_ID
        a > heartbeat 3 gen=2 member=a1
        a < heartbeat REBALANCE_IN_PROGRESS
        a > join 5 member=a1 range=A
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A
    """,
    "who waits for an answer is not silent": """
        @one
        b > join 5 session=3000 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 session=3000 range=B
        wait 4000
        a > join 5 member=a1 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2 protocol=range leader=a1 member=b1
        b > sync 3 gen=2 member=b1
        wait 4000
        a > sync 3 gen=2 member=a1 a1=X b1=Y
        a < sync assignment=X
        b < sync assignment=Y
        b > heartbeat 3 gen=2 member=b1
        b < heartbeat
    """,
    "the last one falls silent": """
        a > join 0 session=3000 range=A
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1:A
        a > sync 0 gen=1 member=a1 a1=X
        a < sync assignment=X
        wait 4500
        x > describe 5
        x < describe state=Empty type=consumer
        a > heartbeat 0 gen=1 member=a1
        a < heartbeat UNKNOWN_MEMBER_ID
        b > join 0 range=B
        b < join gen=3 protocol=range leader=b1 member=b1 members=b1:B
    """,
    "a commit is a sign of life": """
        @one
        b > join 5 session=6000 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 session=6000 range=B
        a > join 5 member=a1 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2 protocol=range leader=a1 member=b1
        a > sync 3 gen=2 member=a1 a1=X b1=Y
        a < sync assignment=X
        b > sync 3 gen=2 member=b1
        b < sync assignment=Y
        wait 3500
        b > commit 7 gen=2 member=b1
        b < commit
        wait 3500
        b > heartbeat 3 gen=2 member=b1
        b < heartbeat
    """,
    # ── Leaving ──
    "leaving": """
        @two
        b > leave 3 b1 nobody
        b < leave members=b1:NONE,nobody:UNKNOWN_MEMBER_ID
        a > heartbeat 3 gen=2 member=a1
        a < heartbeat REBALANCE_IN_PROGRESS
        a > join 5 member=a1 range=A
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A
        a > sync 3 gen=3 member=a1 a1=X
        a < sync assignment=X
        a > leave 1 a1
        a < leave
        x > describe 5
        x < describe state=Empty type=consumer
    """,
    "leaving while a rebalance is waited for": """
        @two
        a > join 5 member=a1 range=A
        x > leave 3 b1
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A
        x < leave members=b1:NONE
        a > sync 3 gen=3 member=a1 a1=X
        a < sync assignment=X
    """,
    "all leave at once": """
        @two
        x > leave 3 a1 b1
        x < leave members=a1:NONE,b1:NONE
        x > describe 5
        x < describe state=Empty type=consumer
        x > delete 1
        x < delete
        x > describe 5
        x < describe state=Dead
        a > join 5 member=a1 range=A
        a < join UNKNOWN_MEMBER_ID member=a1
    """,
    "a group with members is not deleted": """
        @one
        x > delete 1
        x < delete NON_EMPTY_GROUP
        a > heartbeat 3 gen=1 member=a1
        a < heartbeat
    """,
    # ── Static members ──
    "static": """
        a > join 5 instance=i range=A
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1/i:A
        a > sync 3 gen=1 member=a1 instance=i a1=X
        a < sync assignment=X
        b > join 5 instance=j range=B
        a > join 5 member=a1 instance=i range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1/i:A,b1/j:B
        b < join gen=2 protocol=range leader=a1 member=b1
        b > sync 3 gen=2 member=b1 instance=j
        a > sync 3 gen=2 member=a1 instance=i a1=X b1=Y
        a < sync assignment=X
        b < sync assignment=Y
        x > describe 5
        x < describe state=Stable type=consumer protocol=range members=a1/i:a:A:X,b1/j:b:B:Y
    """,
    "a static follower comes back": """
        @static
        b > join 5 instance=j range=B
        b < join gen=2 protocol=range leader=a1 member=b2
        b > heartbeat 3 gen=2 member=b1 instance=j
        b < heartbeat FENCED_INSTANCE_ID
        b > heartbeat 3 gen=2 member=b1
        b < heartbeat UNKNOWN_MEMBER_ID
        b > heartbeat 3 gen=2 member=b2 instance=j
        b < heartbeat
        b > sync 3 gen=2 member=b1 instance=j
        b < sync FENCED_INSTANCE_ID
        b > sync 3 gen=2 member=b2 instance=j
        b < sync assignment=Y
        b > commit 7 gen=2 member=b1 instance=j
        b < commit FENCED_INSTANCE_ID
        b > commit 7 gen=2 member=b2 instance=j
        b < commit
        b > join 5 member=b1 instance=j range=B
        b < join FENCED_INSTANCE_ID member=b1
        b > join 7 member=b1 instance=j range=B
        b < join FENCED_INSTANCE_ID protocol=null member=b1
        b > leave 3 b1/j
        b < leave members=b1/j:FENCED_INSTANCE_ID
        a > heartbeat 3 gen=2 member=a1 instance=i
        a < heartbeat
        x > describe 5
        x < describe state=Stable type=consumer protocol=range members=a1/i:a:A:X,b2/j:b:B:Y
    """,
    "a static follower comes back with something else to say": """
        @static
        b > join 5 instance=j range=B2
        b < join gen=2 protocol=range leader=a1 member=b2
        a > heartbeat 3 gen=2 member=a1 instance=i
        a < heartbeat
        x > describe 5
        x < describe state=Stable type=consumer protocol=range members=a1/i:a:A:X,b2/j:b:B2:Y
    """,
    "a static follower comes back, and all would choose another protocol": """
        a > join 5 instance=i p=A q=A
        a < join gen=1 protocol=p leader=a1 member=a1 members=a1/i:A
        a > sync 3 gen=1 member=a1 instance=i a1=X
        a < sync assignment=X
        a > join 5 instance=i q=A
        a < join gen=2 protocol=q leader=a2 member=a2 members=a2/i:A
        a > sync 3 gen=2 member=a2 instance=i a2=X
        a < sync assignment=X
    """,
    "a static leader comes back to version 8": """
        @static
        a > join 8 instance=i range=A
        a < join gen=2 type=consumer protocol=range leader=a1 member=a2
        a > sync 5 gen=2 member=a2 instance=i type=consumer protocol=range
        a < sync type=consumer protocol=range assignment=X
        b > heartbeat 3 gen=2 member=b1 instance=j
        b < heartbeat
        x > describe 5
        x < describe state=Stable type=consumer protocol=range members=a2/i:a:A:X,b1/j:b:B:Y
    """,
    "a static leader comes back to version 9": """
        @static
        a > join 9 instance=i range=A
        a < join gen=2 type=consumer protocol=range leader=a2 skip member=a2 members=a2/i:A,b1/j:B
        a > sync 5 gen=2 member=a2 instance=i type=consumer protocol=range
        a < sync type=consumer protocol=range assignment=X
        b > heartbeat 3 gen=2 member=b1 instance=j
        b < heartbeat
        a > join 9 member=a2 instance=i range=A
        b > join 9 member=b1 instance=j range=B
        a < join gen=3 type=consumer protocol=range leader=a2 member=a2 members=a2/i:A,b1/j:B
        b < join gen=3 type=consumer protocol=range leader=a2 member=b1
    """,
    "a static member comes back while others join": """
        @static
        a > join 5 member=a1 instance=i range=A
        y > join 5 instance=i range=A
        a < join FENCED_INSTANCE_ID member=a1
        b > join 5 member=b1 instance=j range=B
        b < join gen=3 protocol=range leader=y1 member=b1
        y < join gen=3 protocol=range leader=y1 member=y1 members=b1/j:B,y1/i:A
    """,
    "a static member comes back before the assignment": """
        @static
        a > join 5 member=a1 instance=i range=A
        b > join 5 member=b1 instance=j range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1/i:A,b1/j:B
        b < join gen=3 protocol=range leader=a1 member=b1
        b > sync 3 gen=3 member=b1 instance=j
        y > join 5 instance=j range=B
        b < sync FENCED_INSTANCE_ID
        a > sync 3 gen=3 member=a1 instance=i a1=X b1=Y
        a < sync REBALANCE_IN_PROGRESS
        a > join 5 member=a1 instance=i range=A
        a < join gen=4 protocol=range leader=a1 member=a1 members=a1/i:A,y1/j:B
        y < join gen=4 protocol=range leader=a1 member=y1
    """,
    "a static member that does not join stays until its session ends": """
        a > join 5 instance=i rebalance=3000 range=A
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1/i:A
        b > join 5 instance=j rebalance=3000 session=6000 range=B
        a > join 5 member=a1 instance=i rebalance=3000 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1/i:A,b1/j:B
        b < join gen=2 protocol=range leader=a1 member=b1
        a > sync 3 gen=2 member=a1 instance=i a1=X b1=Y
        a < sync assignment=X
        b > sync 3 gen=2 member=b1 instance=j
        b < sync assignment=Y
        a > join 5 member=a1 instance=i rebalance=3000 range=A
        wait 3500
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1/i:A,b1/j:B
        a > sync 3 gen=3 member=a1 instance=i a1=X b1=Z
        a < sync assignment=X
        b > heartbeat 3 gen=2 member=b1 instance=j
        b < heartbeat ILLEGAL_GENERATION
        b > sync 3 gen=3 member=b1 instance=j
        b < sync assignment=Z
        wait 10000
        b > heartbeat 3 gen=3 member=b1 instance=j
        b < heartbeat UNKNOWN_MEMBER_ID
        a > heartbeat 3 gen=3 member=a1 instance=i
        a < heartbeat REBALANCE_IN_PROGRESS
    """,
    "a static leader that does not join leads no more": """
        a > join 5 instance=i rebalance=4000 range=A
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1/i:A
        b > join 5 instance=j rebalance=4000 range=B
        a > join 5 member=a1 instance=i rebalance=4000 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1/i:A,b1/j:B
        b < join gen=2 protocol=range leader=a1 member=b1
        a > sync 3 gen=2 member=a1 instance=i a1=X b1=Y
        a < sync assignment=X
        b > sync 3 gen=2 member=b1 instance=j
        b < sync assignment=Y
        b > join 5 member=b1 instance=j rebalance=4000 range=B2
        wait 5000
        b < join gen=3 protocol=range leader=b1 member=b1 members=a1/i:A,b1/j:B2
        b > sync 3 gen=3 member=b1 instance=j a1=X3 b1=Y3
        b < sync assignment=Y3
        a > sync 3 gen=3 member=a1 instance=i
        a < sync assignment=X3
    """,
    "static members are removed by their names": """
        @static
        x > leave 3 -/j -/k
        x < leave members=-/j:NONE,-/k:UNKNOWN_MEMBER_ID
        a > heartbeat 3 gen=2 member=a1 instance=i
        a < heartbeat REBALANCE_IN_PROGRESS
        b > heartbeat 3 gen=2 member=b1 instance=j
        b < heartbeat UNKNOWN_MEMBER_ID
        a > join 5 member=a1 instance=i range=A
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1/i:A
        x > leave 3 nobody/i
        x < leave members=nobody/i:FENCED_INSTANCE_ID
        x > leave 3 a1/i
        x < leave members=a1/i:NONE
        x > describe 5
        x < describe state=Empty type=consumer
    """,
    # ── Commits ──
    "commits to a group that nobody knows": """
        x > commit 8 gen=3 member=x1
        x < commit ILLEGAL_GENERATION
        x > commit 9 gen=3 member=x1
        x < commit GROUP_ID_NOT_FOUND
        x > commit 8 member=x1
        x < commit
        x > describe 5
        x < describe state=Empty
        x > commit 8 gen=3 member=x1
        x < commit UNKNOWN_MEMBER_ID
        x > commit 8
        x < commit
        x > delete 1
        x < delete
    """,
    "commits of those who are in no group": """
        @one
        x > commit 8 gen=3 member=x1
        x < commit UNKNOWN_MEMBER_ID
        x > commit 9 gen=3 member=x1
        x < commit UNKNOWN_MEMBER_ID
        x > commit 8
        x < commit UNKNOWN_MEMBER_ID
        x > describe 5
        x < describe state=Stable type=consumer protocol=range members=a1:a:A:X
        x > commit 8 gen=3 member=x1
        x < commit UNKNOWN_MEMBER_ID
        x > commit 8
        x < commit UNKNOWN_MEMBER_ID
        x > commit 8 member=nobody
        x < commit UNKNOWN_MEMBER_ID
        x > commit 8 gen=1 member=nobody
        x < commit UNKNOWN_MEMBER_ID
        x > commit 8 gen=1 member=a1 instance=i
        x < commit UNKNOWN_MEMBER_ID
        x > commit 8 gen=0 member=a1
        x < commit ILLEGAL_GENERATION
        x > commit 8 member=a1
        x < commit ILLEGAL_GENERATION
        b > join 5 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 range=B
        a > commit 8 gen=1 member=a1
        a < commit
    """,
}
