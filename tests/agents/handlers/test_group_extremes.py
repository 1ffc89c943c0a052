"""What a client says of its offsets is stored so that it is read again; damage is removable."""

import asyncio
from itertools import product
from pathlib import Path

import pytest

from driftlog_agents.groups.storage_format import StoredGroup, encode_group
from driftlog_agents.handlers.api import delete_groups, offset_commit, offset_delete, offset_fetch
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import offset_commit as oc
from driftlog_agents.protocol.messages import offset_delete as od
from driftlog_agents.protocol.messages import offset_fetch as of
from driftlog_agents.protocol.messages.delete_groups import DeleteGroupsRequest
from driftlog_metadata.schema.keys import GROUPS_PREFIX, group_key, group_offsets_key, group_prefix
from driftlog_metadata.stores.store import Put
from tests.agents.handlers.asking import create, new
from tests.support.engine import RunningAgent

INT64 = (-(2**63), -(2**63) + 1, -1, 0, 2**63 - 1)
INT32 = (-(2**31), -1, 0, 2**31 - 1)
TEXTS = (None, "", "\x00\x1f\u2028😀�")


async def commit(
    agent: RunningAgent,
    group: str,
    offset: int,
    *,
    version: int = 2,
    retention_ms: int = -1,
    epoch: int = -1,
    metadata: str | None = None,
) -> int:
    """Of partition 0 of `t`; the error code."""
    partition = oc.OffsetCommitRequestPartition(
        committed_offset=offset, committed_leader_epoch=epoch, committed_metadata=metadata
    )
    request = oc.OffsetCommitRequest(
        group_id=group,
        retention_time_ms=retention_ms,
        topics=[oc.OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    answer = await offset_commit.handle(agent.broker, request, agent.context(version))
    return answer.topics[0].partitions[0].error_code


async def fetch(agent: RunningAgent, group: str) -> tuple[int, int, str | None, int]:
    """Offset, epoch, metadata and error of partition 0 of `t`."""
    topic = of.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    request = of.OffsetFetchRequest(
        groups=[of.OffsetFetchRequestGroup(group_id=group, topics=[topic])]
    )
    answer = await offset_fetch.handle(agent.broker, request, agent.context(8))
    found = answer.groups[0]
    if found.error_code:
        return 0, 0, None, found.error_code
    [one] = found.topics[0].partitions
    return one.committed_offset, one.committed_leader_epoch, one.metadata, one.error_code


async def delete(agent: RunningAgent, *groups: str) -> list[int]:
    """DeleteGroups; the error codes."""
    request = DeleteGroupsRequest(groups_names=list(groups))
    answer = await delete_groups.handle(agent.broker, request, agent.context(2))
    return [result.error_code for result in answer.results]


async def put_page(agent: RunningAgent, group: str, item: str) -> None:
    """What an agent has stored of partition 0 of `t`, and of the group."""
    topic_id = agent.broker.topics.by_name["t"].topic_id
    body = (
        b'{"v":1,"generation":0,"reserved":1000,"protocol_type":null,"protocol":null,'
        b'"leader":null,"state_since_ms":0,"members":[]}'
    )
    own = encode_group(StoredGroup(session_id="s", kind="classic", body=body), "n")
    page = f'{{"v":1,"nonce":"n","offsets":{{"0":{item}}}}}'.encode()
    await agent.broker.metadata.txn(
        (), [Put(group_key(group), own), Put(group_offsets_key(group, topic_id, 0), page)]
    )


async def test_whatever_can_be_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    """
    Offsets and retentions over all of int64, epochs over all of int32, text of all kinds.
    """
    said = {
        f"g{i}": (offset, retention_ms, epoch, text)
        for i, (offset, retention_ms, (epoch, text)) in enumerate(
            product(INT64, INT64, zip(INT32, (*TEXTS, "x"), strict=True))
        )
    }
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        codes = await asyncio.gather(
            *(
                commit(agent, group, offset, retention_ms=r, epoch=epoch, metadata=text)
                for group, (offset, r, epoch, text) in said.items()
            )
        )
        before = {group: await fetch(agent, group) for group in said}
        await agent.lose_session()
        after = {group: await fetch(agent, group) for group in said}

    assert {ErrorCode.NONE} == set(codes)
    expected = {group: (offset, text or "") for group, (offset, _, _, text) in said.items()}
    assert expected == {group: (offset, text) for group, (offset, _, text, _) in before.items()}
    assert before == after


@pytest.mark.parametrize(
    "item",
    [
        '[-9223372036854775808,-1,1700000000000,""]',
        '[7,-1,1700000000000,"",9223373736854775807]',
    ],
)
async def test_a_group_that_was_stored_so_before_is_read(tmp_path: Path, item: str) -> None:
    """
    Agents of before have stored these, and could not read them.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        await put_page(agent, "bricked", item)

        offset, *_, error = await fetch(agent, "bricked")

        assert (ErrorCode.NONE, True) == (error, offset in (7, -(2**63)))


@pytest.mark.parametrize("damaged", ["page", "group"])
async def test_a_group_that_cannot_be_read_is_deleted(tmp_path: Path, damaged: str) -> None:
    """
    It is refused until then; other groups go on; nothing of it is left, and its name is free.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        assert ErrorCode.NONE == await commit(agent, "good", 5)
        await put_page(agent, "bad", '["?"]')
        if damaged == "group":
            await agent.broker.metadata.txn((), [Put(group_key("bad"), b"{")])
        await agent.lose_session()

        assert ErrorCode.UNKNOWN_SERVER_ERROR == (await fetch(agent, "bad"))[3]
        assert (5, -1, "", ErrorCode.NONE) == await fetch(agent, "good")
        assert [ErrorCode.NONE] == await delete(agent, "bad")

        _, kvs = await agent.broker.metadata.get_prefix(GROUPS_PREFIX)
        assert not any(kv.key.startswith(group_key("bad")) for kv in kvs)
        assert [ErrorCode.GROUP_ID_NOT_FOUND] == await delete(agent, "bad")
        assert ErrorCode.NONE == await commit(agent, "bad", 6)
        assert 6 == (await fetch(agent, "bad"))[0]


async def test_a_page_that_cannot_be_read_is_deleted_by_who_names_its_offsets(
    tmp_path: Path,
) -> None:
    """
    OffsetDelete: the group is there again, without them.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        await put_page(agent, "bad", '["?"]')
        partition = od.OffsetDeleteRequestPartition(partition_index=0)
        request = od.OffsetDeleteRequest(
            group_id="bad",
            topics=[od.OffsetDeleteRequestTopic(name="t", partitions=[partition])],
        )

        answer = await offset_delete.handle(agent.broker, request, agent.context(0))

        assert ErrorCode.NONE == answer.error_code
        assert (-1, -1, "", ErrorCode.NONE) == await fetch(agent, "bad")


@pytest.mark.parametrize("newer", ["group", "page"])
async def test_a_group_in_a_newer_format_is_not_deleted(tmp_path: Path, newer: str) -> None:
    """
    It is no damage: an agent that is upgraded reads it.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        await put_page(agent, "newer", '["?"]')
        topic_id = agent.broker.topics.by_name["t"].topic_id
        pages = group_offsets_key("newer", topic_id, 0)
        key = group_key("newer") if newer == "group" else pages
        await agent.broker.metadata.txn((), [Put(key, b'{"v":2}')])

        assert [ErrorCode.UNKNOWN_SERVER_ERROR] == await delete(agent, "newer")

        _, kvs = await agent.broker.metadata.get_prefix(group_prefix("newer"))
        assert await agent.broker.metadata.get(group_key("newer")) is not None
        assert [pages] == [kv.key for kv in kvs]
