"""What clients of classic groups say and are told while they join: see `classic_scripts`.

Every line was seen on Apache Kafka 4.3.1, with the broker configs of `KAFKA_CONFIGS`;
`test_machine_transcripts` plays them to a real one again where there is one.
Pure.
"""

from dataclasses import replace
from typing import Final

from driftlog_agents.configs.group_settings import ClassicSettings
from tests.agents.groups.classic_transcripts_members import MEMBERS

SETTINGS: Final = ClassicSettings(
    initial_rebalance_delay_ms=0, min_session_timeout_ms=100, max_size=3
)
KAFKA_CONFIGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.max.size": "3",
    # Requests are handled in the order in which they were sent, whatever their connections.
    "num.network.threads": "1",
    "num.io.threads": "1",
}

JOINING: Final = {
    # ── The usual life ──
    "one": """
        a > join 5 range=A
        a < join MEMBER_ID_REQUIRED member=a1
        a > join 5 member=a1 range=A
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1:A
        a > sync 3 gen=1 member=a1 a1=X
        a < sync assignment=X
    """,
    "two": """
        @one
        b > join 5 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 range=B
        a > heartbeat 3 gen=1 member=a1
        a < heartbeat REBALANCE_IN_PROGRESS
        a > join 5 member=a1 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2 protocol=range leader=a1 member=b1
        b > sync 3 gen=2 member=b1
        a > sync 3 gen=2 member=a1 a1=X b1=Y
        a < sync assignment=X
        b < sync assignment=Y
        a > heartbeat 3 gen=2 member=a1
        a < heartbeat
        b > heartbeat 3 gen=2 member=b1
        b < heartbeat
        b > describe 5
        b < describe state=Stable type=consumer protocol=range members=a1:a:A:X,b1:b:B:Y
    """,
    "the versions of a life: 0": """
        a > join 0 range=A
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1:A
        a > sync 0 gen=1 member=a1 a1=X
        a < sync assignment=X
        a > heartbeat 0 gen=1 member=a1
        a < heartbeat
        a > commit 2 gen=1 member=a1
        a < commit
        x > describe 0
        x < describe state=Stable type=consumer protocol=range members=a1:a:A:X
        a > leave 0 a1
        a < leave
        x > describe 0
        x < describe state=Empty type=consumer
    """,
    "the versions of a life: 9": """
        a > join 9 range=A roundrobin=R
        a < join MEMBER_ID_REQUIRED protocol=null member=a1
        a > join 9 member=a1 range=A roundrobin=R
        a < join gen=1 type=consumer protocol=range leader=a1 member=a1 members=a1:A
        a > sync 5 gen=1 member=a1 type=consumer protocol=range a1=X
        a < sync type=consumer protocol=range assignment=X
        a > heartbeat 4 gen=1 member=a1
        a < heartbeat
        a > commit 9 gen=1 member=a1
        a < commit
        x > describe 6
        x < describe state=Stable type=consumer protocol=range members=a1:a:A:X
        a > leave 5 a1
        a < leave members=a1:NONE
        x > describe 6
        x < describe state=Empty type=consumer
        x > delete 2
        x < delete
        x > delete 2
        x < delete GROUP_ID_NOT_FOUND
        x > describe 5
        x < describe state=Dead
    """,
    "an assignment for some, and one that is empty": """
        @one
        b > join 5 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 range=B
        a > join 5 member=a1 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2 protocol=range leader=a1 member=b1
        a > sync 5 gen=2 member=a1 type=consumer protocol=range
        a < sync type=consumer protocol=range
        b > sync 5 gen=2 member=b1 type=consumer protocol=range
        b < sync type=consumer protocol=range
    """,
    # ── Joining ──
    "who does not know the protocols of the others may not join": """
        @one
        b > join 5 other=B
        b < join INCONSISTENT_GROUP_PROTOCOL
        b > join 5 type=connect range=B
        b < join INCONSISTENT_GROUP_PROTOCOL
        b > join 5
        b < join INCONSISTENT_GROUP_PROTOCOL
        a > heartbeat 3 gen=1 member=a1
        a < heartbeat
    """,
    "an empty group takes no member without protocols, or protocol type": """
        a > join 5
        a < join INCONSISTENT_GROUP_PROTOCOL
        b > join 5 type= range=B
        b < join INCONSISTENT_GROUP_PROTOCOL
    """,
    "votes": """
        a > join 5 p=A q=A
        a < join MEMBER_ID_REQUIRED member=a1
        a > join 5 member=a1 p=A q=A
        a < join gen=1 protocol=p leader=a1 member=a1 members=a1:A
        b > join 5 q=B p=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 q=B p=B
        c > join 5 q=C p=C r=C
        c < join MEMBER_ID_REQUIRED member=c1
        c > join 5 member=c1 q=C p=C r=C
        a > join 5 member=a1 p=A q=A
        a < join gen=2 protocol=q leader=a1 member=a1 members=a1:A,b1:B,c1:C
        b < join gen=2 protocol=q leader=a1 member=b1
        c < join gen=2 protocol=q leader=a1 member=c1
    """,
    "only what all can speak is voted for": """
        a > join 5 p=A q=A
        a < join MEMBER_ID_REQUIRED member=a1
        a > join 5 member=a1 p=A q=A
        a < join gen=1 protocol=p leader=a1 member=a1 members=a1:A
        b > join 5 q=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 q=B
        a > join 5 member=a1 p=A q=A
        a < join gen=2 protocol=q leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2 protocol=q leader=a1 member=b1
    """,
    "who lets go of the protocol that all share may not join": """
        @two
        b > join 5 member=b1 other=B
        b < join INCONSISTENT_GROUP_PROTOCOL member=b1
        a > join 5 member=a1 other=A
        a < join INCONSISTENT_GROUP_PROTOCOL member=a1
        a > heartbeat 3 gen=2 member=a1
        a < heartbeat
    """,
    "any protocol type": """
        a > join 7 type=connect sessioned=A
        a < join MEMBER_ID_REQUIRED protocol=null member=a1
        a > join 7 member=a1 type=connect sessioned=A
        a < join gen=1 type=connect protocol=sessioned leader=a1 member=a1 members=a1:A
        a > sync 5 gen=1 member=a1 type=connect protocol=sessioned a1=X
        a < sync type=connect protocol=sessioned assignment=X
        x > describe 5
        x < describe state=Stable type=connect protocol=sessioned members=a1:a:A:X
        a > join 7 member=a1 type=consumer sessioned=A
        a < join INCONSISTENT_GROUP_PROTOCOL protocol=null member=a1
        a > leave 3 a1
        a < leave members=a1:NONE
        b > join 7 type=sr v0=B
        b < join MEMBER_ID_REQUIRED protocol=null member=b1
        b > join 7 member=b1 type=sr v0=B
        b < join gen=3 type=sr protocol=v0 leader=b1 member=b1 members=b1:B
        x > describe 5
        x < describe state=CompletingRebalance type=sr members=b1:b::
    """,
    "a session that is too short or too long": """
        a > join 5 session=99 range=A
        a < join INVALID_SESSION_TIMEOUT
        a > join 5 session=1800001 range=A
        a < join INVALID_SESSION_TIMEOUT
        a > join 5 member=nobody session=99 range=A
        a < join INVALID_SESSION_TIMEOUT member=nobody
        x > describe 5
        x < describe state=Dead
    """,
    "a group that nobody knows": """
        a > join 5 member=nobody range=A
        a < join UNKNOWN_MEMBER_ID member=nobody
        a > sync 3 gen=1 member=nobody
        a < sync UNKNOWN_MEMBER_ID
        a > heartbeat 3 gen=1 member=nobody
        a < heartbeat UNKNOWN_MEMBER_ID
        a > leave 1 nobody
        a < leave UNKNOWN_MEMBER_ID
        a > leave 3 nobody -/i
        a < leave members=-/i:UNKNOWN_MEMBER_ID,nobody:UNKNOWN_MEMBER_ID
        x > describe 5
        x < describe state=Dead
        x > describe 6
        x < describe GROUP_ID_NOT_FOUND state=Dead
    """,
    "members that nobody knows": """
        @one
        a > join 5 member=nobody range=A
        a < join UNKNOWN_MEMBER_ID member=nobody
        a > sync 3 gen=1 member=nobody
        a < sync UNKNOWN_MEMBER_ID
        a > heartbeat 3 gen=1 member=nobody
        a < heartbeat UNKNOWN_MEMBER_ID
        a > leave 1 nobody
        a < leave UNKNOWN_MEMBER_ID
        a > leave 3 nobody -/i
        a < leave members=-/i:UNKNOWN_MEMBER_ID,nobody:UNKNOWN_MEMBER_ID
        b > join 5 member=nobody range=B
        b < join UNKNOWN_MEMBER_ID member=nobody
        b > join 7 member=nobody range=B
        b < join UNKNOWN_MEMBER_ID protocol=null member=nobody
        b > sync 3 gen=1 member=nobody
        b < sync UNKNOWN_MEMBER_ID
        b > heartbeat 3 gen=1 member=nobody
        b < heartbeat UNKNOWN_MEMBER_ID
        b > leave 1 nobody
        b < leave UNKNOWN_MEMBER_ID
        b > leave 3 nobody -/i -
        b < leave members=-/i:UNKNOWN_MEMBER_ID,-:UNKNOWN_MEMBER_ID,nobody:UNKNOWN_MEMBER_ID
        b > join 5 member=nobody instance=i range=B
        b < join UNKNOWN_MEMBER_ID member=nobody
    """,
    "a pending member is waited for": """
        @one
        b > join 4 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        c > join 4 range=C
        c < join MEMBER_ID_REQUIRED member=c1
        b > join 4 member=b1 range=B
        a > join 4 member=a1 range=A
        y > heartbeat 1 gen=1 member=c1
        y < heartbeat UNKNOWN_MEMBER_ID
        c > join 4 member=c1 range=C
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A,b1:B,c1:C
        b < join gen=2 protocol=range leader=a1 member=b1
        c < join gen=2 protocol=range leader=a1 member=c1
    """,
    "a pending member is waited for until it leaves": """
        @one
        b > join 4 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        c > join 4 range=C
        c < join MEMBER_ID_REQUIRED member=c1
        b > join 4 member=b1 range=B
        a > join 4 member=a1 range=A
        x > leave 3 c1
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2 protocol=range leader=a1 member=b1
        x < leave members=c1:NONE
        c > join 4 member=c1 range=C
        c < join UNKNOWN_MEMBER_ID member=c1
    """,
    "a pending member is waited for until its session ends": """
        @one
        b > join 4 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        c > join 4 session=3000 range=C
        c < join MEMBER_ID_REQUIRED member=c1
        b > join 4 member=b1 range=B
        a > join 4 member=a1 range=A
        wait 4000
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2 protocol=range leader=a1 member=b1
        c > join 4 member=c1 range=C
        c < join UNKNOWN_MEMBER_ID member=c1
    """,
    "a pending member with an instance id is nothing that a client does": """
        a > join 5 range=A
        a < join MEMBER_ID_REQUIRED member=a1
        a > join 5 member=a1 instance=i range=A
        a < join UNKNOWN_SERVER_ERROR
        a > join 5 member=a1 range=A
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1:A
    """,
    "a follower that joins again as it was, is where it was": """
        @two
        b > join 5 member=b1 range=B
        b < join gen=2 protocol=range leader=a1 member=b1
        b > sync 3 gen=2 member=b1
        b < sync assignment=Y
        a > heartbeat 3 gen=2 member=a1
        a < heartbeat
    """,
    "a follower that joins again with something else to say": """
        @two
        b > join 5 member=b1 range=B2
        a > heartbeat 3 gen=2 member=a1
        a < heartbeat REBALANCE_IN_PROGRESS
        a > join 5 member=a1 range=A
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B2
        b < join gen=3 protocol=range leader=a1 member=b1
    """,
    "a leader that joins again wants to assign anew": """
        @two
        a > join 5 member=a1 range=A
        b > heartbeat 3 gen=2 member=b1
        b < heartbeat REBALANCE_IN_PROGRESS
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
    """,
    "joining again before the assignment": """
        @two
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=3 protocol=range leader=a1 member=b1
        b > join 5 member=b1 range=B
        b < join gen=3 protocol=range leader=a1 member=b1
        a > join 5 member=a1 range=A
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b > join 5 member=b1 range=B2
        a > sync 3 gen=3 member=a1 a1=X b1=Y
        a < sync REBALANCE_IN_PROGRESS
        a > join 5 member=a1 range=A
        a < join gen=4 protocol=range leader=a1 member=a1 members=a1:A,b1:B2
        b < join gen=4 protocol=range leader=a1 member=b1
    """,
    "a rebalance ends without who does not join": """
        @one
        a > join 5 member=a1 rebalance=3000 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A
        b > join 5 rebalance=3000 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 rebalance=3000 range=B
        wait 4500
        b < join gen=3 protocol=range leader=b1 member=b1 members=b1:B
        a > join 5 member=a1 range=A
        a < join UNKNOWN_MEMBER_ID member=a1
        a > heartbeat 3 gen=2 member=a1
        a < heartbeat UNKNOWN_MEMBER_ID
    """,
    "the longest rebalance timeout is that of all": """
        @one
        b > join 5 rebalance=100 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        b > join 5 member=b1 rebalance=100 range=B
        wait 1000
        a > heartbeat 3 gen=1 member=a1
        a < heartbeat REBALANCE_IN_PROGRESS
        a > join 5 member=a1 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2 protocol=range leader=a1 member=b1
    """,
    "version 0 has its session timeout for rebalances too": """
        a > join 0 session=3000 range=A
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1:A
        b > join 0 session=3000 range=B
        wait 4000
        b < join gen=2 protocol=range leader=b1 member=b1 members=b1:B
        a > heartbeat 0 gen=1 member=a1
        a < heartbeat UNKNOWN_MEMBER_ID
    """,
    "a full group": """
        @two
        c > join 5 range=C
        c < join MEMBER_ID_REQUIRED member=c1
        c > join 5 member=c1 range=C
        a > join 5 member=a1 range=A
        b > join 5 member=b1 range=B
        a < join gen=3 protocol=range leader=a1 member=a1 members=a1:A,b1:B,c1:C
        b < join gen=3 protocol=range leader=a1 member=b1
        c < join gen=3 protocol=range leader=a1 member=c1
        d > join 5 range=D
        d < join GROUP_MAX_SIZE_REACHED
        d > join 5 instance=i range=D
        d < join GROUP_MAX_SIZE_REACHED
        a > heartbeat 3 gen=3 member=a1
        a < heartbeat
    """,
    "a full rebalance": """
        @one
        b > join 4 range=B
        b < join MEMBER_ID_REQUIRED member=b1
        c > join 4 range=C
        c < join MEMBER_ID_REQUIRED member=c1
        d > join 4 range=D
        d < join MEMBER_ID_REQUIRED member=d1
        b > join 4 member=b1 range=B
        c > join 4 member=c1 range=C
        d > join 4 member=d1 range=D
        a > join 4 member=a1 range=A
        a < join GROUP_MAX_SIZE_REACHED
    """,
}

DELAYED_SETTINGS: Final = replace(SETTINGS, initial_rebalance_delay_ms=5_000)
DELAYED_CONFIGS: Final = KAFKA_CONFIGS | {"group.initial.rebalance.delay.ms": "5000"}

DELAYED: Final = {
    "a first rebalance waits, and waits on while members come": """
        a > join 0 range=A
        wait 1500
        b > join 0 range=B
        wait 5000
        wait 4500
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=1 protocol=range leader=a1 member=b1
        a > sync 0 gen=1 member=a1 a1=X b1=Y
        a < sync assignment=X
        b > sync 0 gen=1 member=b1
        b < sync assignment=Y
    """,
    "a first rebalance waits no longer than any rebalance": """
        a > join 1 rebalance=8000 range=A
        wait 2500
        b > join 1 rebalance=8000 range=B
        wait 3000
        c > join 1 rebalance=8000 range=C
        wait 3000
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1:A,b1:B,c1:C
        b < join gen=1 protocol=range leader=a1 member=b1
        c < join gen=1 protocol=range leader=a1 member=c1
    """,
    "a first rebalance waits once for one member": """
        a > join 0 range=A
        wait 2000
        wait 4000
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1:A
        a > sync 0 gen=1 member=a1 a1=X
        a < sync assignment=X
        b > join 0 range=B
        a > join 0 member=a1 range=A
        a < join gen=2 protocol=range leader=a1 member=a1 members=a1:A,b1:B
        b < join gen=2 protocol=range leader=a1 member=b1
    """,
    "a pending member that goes away is not waited for": """
        a > join 4 session=2500 range=A
        a < join MEMBER_ID_REQUIRED member=a1
        b > join 0 range=B
        wait 3500
        b < join gen=1 protocol=range leader=b1 member=b1 members=b1:B
        a > join 4 member=a1 range=A
        a < join UNKNOWN_MEMBER_ID member=a1
    """,
    "an empty group begins with a first rebalance": """
        a > join 5 instance=i range=A
        wait 5500
        a < join gen=1 protocol=range leader=a1 member=a1 members=a1/i:A
        x > leave 3 -/i
        x < leave members=-/i:NONE
        a > join 5 instance=i range=A
        wait 5500
        a < join gen=3 protocol=range leader=a2 member=a2 members=a2/i:A
    """,
}

TRANSCRIPTS: Final = JOINING | MEMBERS
