"""A filling etcd is reported, and then refuses producers, from the documented levels on."""

import socket
import threading
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from driftlog_agents.health.etcd_quota_monitor import EtcdQuotaMonitor
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_quota import quota_from_metrics
from driftlog_metadata.stores.quota import Quota, QuotaRoom, Usage

QUOTA = 1_000


def usage(size: int, *, full: bool = False, quota: int | None = QUOTA, member: str = "m") -> Usage:
    return Usage(member=member, size_bytes=size, quota_bytes=quota, full=full, revision=77)


@pytest.mark.parametrize(
    ("size", "room"),
    [
        (0, QuotaRoom.ENOUGH),
        (599, QuotaRoom.ENOUGH),
        (600, QuotaRoom.SCARCE),
        (799, QuotaRoom.SCARCE),
        (800, QuotaRoom.REFUSING),
        (2_000, QuotaRoom.REFUSING),
    ],
)
def test_producers_are_refused_from_four_fifths_of_the_quota_on(size: int, room: QuotaRoom) -> None:
    """
    And it is said from three fifths on; what is less again is so at once.
    """
    quota = Quota()
    news = quota.told([usage(size)])
    again = quota.told([usage(size)])
    found, refuses = quota.room, quota.refusal != ""
    quota.told([usage(0)])

    assert (room, room is QuotaRoom.REFUSING) == (found, refuses)
    assert (room is not QuotaRoom.ENOUGH, False) == (news, again)
    assert (QuotaRoom.ENOUGH, "") == (quota.room, quota.refusal)


def test_the_fullest_member_decides() -> None:
    """
    Each has a file of its own, and any of them stops all.
    """
    quota = Quota()
    quota.told([usage(100, member="a"), usage(850, member="b"), usage(300, member="c")])

    assert quota.fullest is not None
    assert ("b", QuotaRoom.REFUSING) == (quota.fullest.member, quota.room)


def test_an_alarm_refuses_whatever_the_size() -> None:
    """
    After a defragmentation without disarming, and where the quota is not known.
    """
    rooms = []
    for told in (usage(10, full=True), usage(10, full=True, quota=None), usage(900, quota=None)):
        quota = Quota()
        quota.told([told])
        rooms.append(quota.room)

    assert [QuotaRoom.REFUSING, QuotaRoom.REFUSING, QuotaRoom.ENOUGH] == rooms


def test_who_cannot_be_asked_changes_nothing() -> None:
    """
    Neither refuses nor lets anybody in.
    """
    quota = Quota()
    quota.told([usage(900)])

    assert not quota.told([])
    assert QuotaRoom.REFUSING is quota.room


async def test_that_a_quota_is_not_known_is_said_once() -> None:
    """
    And again when it was known meanwhile.
    """
    answers = [[usage(10, quota=None)]] * 3 + [[usage(10)], [usage(10, quota=None)], []]

    async def ask() -> Sequence[Usage]:
        return answers.pop(0)

    watch = EtcdQuotaMonitor(Quota(), ask)
    with capture_logs() as lines:
        while answers:
            await watch.look()

    assert ["etcd_quota_unknown"] * 2 == [line["event"] for line in lines]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\netcd_server_quota_backend_bytes 2.147483648e+09\n", 2**31),
        (b"HTTP/1.1 200 OK\r\n\r\nelse 1\n", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\netcd_ser", None),
        (b"\x00\x00\x12\x04", None),
        (b"", None),
    ],
    ids=["said", "not said", "cut off", "no HTTP", "closed"],
)
def test_what_a_member_says_of_its_quota_is_taken_or_left(answer: bytes, found: int | None) -> None:
    """
    A member that is killed while it answers ends nobody else.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer_once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        settings = EtcdSettings(endpoints=(f"127.0.0.1:{port}",))
        said = quota_from_metrics(settings, f"http://127.0.0.1:{port}")
        thread.join()

    assert found == said


async def test_each_change_is_said_once_with_the_commands_that_make_room() -> None:
    """
    For the member that is fullest, and the revision up to which history may go.
    """
    answers: list[Sequence[Usage] | Exception] = [
        [usage(10)],
        [usage(650)],
        [usage(660)],
        [usage(820)],
        UnavailableError("no etcd endpoint did it"),
        [usage(990, full=True)],
        [usage(500)],
    ]

    async def ask() -> Sequence[Usage]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch = EtcdQuotaMonitor(Quota(), ask)
    with capture_logs() as lines:
        while answers:
            await watch.look()
    events = [(line["event"], line["share"]) for line in lines]
    advice = lines[1]["advice"]

    assert [
        ("etcd_quota_low", "65%"),
        ("etcd_quota_almost_exhausted", "82%"),
        ("etcd_quota_recovered", "50%"),
    ] == events
    for command in ("compact 77", "defrag --cluster", "alarm disarm"):
        assert f"etcdctl --endpoints=m {command}" in advice
