"""What keys say of claims: if it failed, two sessions would lead one partition, or none would."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import pytest

from driftlog_agents.log.leadership.claims import (
    MissingKeyError,
    RefusedClaims,
    as_claim,
    judge_refused,
    plan_claims,
    read_apart,
    way_out,
)
from driftlog_metadata.schema.codec import encode_leader, encode_partition_state
from driftlog_metadata.schema.keys import leader_key, partition_key
from driftlog_metadata.schema.model import Leader, PartitionState, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue
from driftlog_metadata.transactions.session_transactions import Claim, Release

TP: Final = TopicPartition(UUID(int=1), 0)
MINE, LIVE, DEAD, OLD = "mine", "live", "dead", "old"
LIVING: Final = {MINE, LIVE}


def keys_of(
    leader: str | None, *, epoch: int = 3, revision: int = 7, sessions: Sequence[str] = ()
) -> dict[str, KeyValue]:
    """Both keys of the partition."""
    values = {
        leader_key(TP): encode_leader(Leader(leader, epoch)),
        partition_key(TP): encode_partition_state(PartitionState(sessions=tuple(sessions))),
    }
    return {
        key: KeyValue(key=key, value=value, create_revision=1, mod_revision=revision)
        for key, value in values.items()
    }


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ("claim", 0)),
        (keys_of(None), ("claim", 4)),
        (keys_of(DEAD), ("claim", 4)),
        (keys_of(OLD), ("claim", 4)),
        (keys_of(LIVE), ("refused", 0)),
        (keys_of(MINE), ("stray", 0)),
    ],
    ids=["never led", "released", "its session gone", "of this disk", "led", "named, not led"],
)
def test_what_is_free_is_claimed_with_the_next_epoch(
    keys: dict[str, KeyValue], expected: tuple[str, int]
) -> None:
    """
    And a key that names this session, before anything was asked, is released first.
    """
    plan = plan_claims([TP], keys, {*LIVING, OLD}, MINE, frozenset({OLD}))

    found = [("claim", claim.epoch) for claim in plan.claims]
    if plan.strays:
        assert [Release(TP, 3, 7)] == plan.strays
        assert [TP] == plan.refused
        found.append(("stray", 0))
    elif plan.refused:
        found.append(("refused", 0))
    assert [expected] == found


@pytest.mark.parametrize("missing", [leader_key(TP), partition_key(TP)])
def test_a_partition_that_lacks_a_key_is_not_claimed_and_its_way_out_is_named_once(
    missing: str,
) -> None:
    """
    Without the one epochs would begin again, without the other offsets.
    """
    keys = keys_of(None)
    del keys[missing]

    plan = plan_claims([TP], keys, LIVING, MINE, frozenset())

    assert ([], []) == (plan.claims, plan.refused)
    (error,) = plan.damaged.values()
    assert isinstance(error, MissingKeyError)
    assert missing in way_out(error)
    assert 1 == way_out(error).count("accept-loss")
    assert "later release" in way_out(CorruptError("a key"))


def claim_of(keys: dict[str, KeyValue]) -> Claim:
    """As it was made of *keys*."""
    (claim,) = plan_claims([TP], keys, LIVING, MINE, frozenset()).claims
    return claim


def reads_of(keys: dict[str, KeyValue]) -> list[list[KeyValue]]:
    """As a transaction reads them."""
    return [[keys[key]] if key in keys else [] for key in (leader_key(TP), partition_key(TP))]


def test_a_claim_that_is_stored_with_the_epoch_that_it_asked_for_is_its_own_attempt() -> None:
    """
    The answer of that one was lost; the revisions are those of the keys.
    """
    claim = claim_of(keys_of(None, epoch=3))
    now = keys_of(MINE, epoch=4, revision=9, sessions=[MINE])

    found = judge_refused([claim], reads_of(now), MINE, frozenset())

    assert [(claim, 9, 9)] == [
        (one.claim, one.leader_revision, one.state_revision) for one in found.stored
    ]
    assert found.changed
    assert [] == found.left


def test_a_retained_claim_is_replaced_by_the_next_one_and_not_released() -> None:
    """
    No other session leads in between.  A lost answer is told from a refusal by the epoch.
    """
    keys = keys_of(MINE, epoch=3)
    plan = plan_claims([TP], keys, LIVING, MINE, frozenset(), retained={TP})
    (claim,) = plan.claims
    stored = keys_of(MINE, epoch=4, revision=9, sessions=[MINE])

    refused = judge_refused([claim], reads_of(keys), MINE, frozenset(), retained={TP})
    lost = judge_refused([claim], reads_of(stored), MINE, frozenset(), retained={TP})

    assert ([], [], 4, True) == (plan.strays, plan.refused, claim.epoch, claim.same_disk)
    assert (False, [claim], []) == (refused.changed, refused.left, refused.stored)
    assert [claim] == [one.claim for one in lost.stored]


def test_a_leadership_of_another_epoch_is_not_taken_for_the_answer() -> None:
    """
    This session led it in between: that cannot be, for one attempt runs at a time.
    """
    claim = claim_of(keys_of(None, epoch=3))

    with pytest.raises(AssertionError):
        judge_refused([claim], reads_of(keys_of(MINE, epoch=6)), MINE, frozenset())


@pytest.mark.parametrize(
    ("now", "changed"), [(keys_of(DEAD), False), (keys_of(None, epoch=5, revision=9), True)]
)
def test_what_is_there_now_is_claimed_next(now: dict[str, KeyValue], changed: bool) -> None:
    """
    Where nothing has changed, the same transaction would be refused again.
    """
    found = judge_refused([claim_of(keys_of(DEAD))], reads_of(now), MINE, frozenset())

    assert [claim_of(now)] == found.left
    assert changed is found.changed
    assert [] == found.stored


def test_claims_whose_keys_changed_are_sent_together_but_those_that_live_sessions_lead() -> None:
    """
    Which sessions live is asked only where a claim depends on it.
    """
    free, dead = (claim_of(keys_of(leader)) for leader in (None, DEAD))
    keys = keys_of(LIVE)
    live = as_claim(TP, keys[leader_key(TP)], keys[partition_key(TP)], frozenset())
    found = RefusedClaims(left=[free, dead, live], changed=True)

    assert found.asks_live
    assert ([[free, dead]], [TP]) == found.again(LIVING)
    assert not RefusedClaims(left=[free], changed=True).asks_live
    assert ([], [TP]) == RefusedClaims(left=[live], changed=True).again(LIVING)


def test_claims_whose_keys_did_not_change_are_sent_one_by_one_and_once() -> None:
    """
    The same transaction would be refused for ever.
    """
    claim = claim_of(keys_of(DEAD))
    several = RefusedClaims(left=[claim, claim])

    assert not several.asks_live
    assert ([[claim], [claim]], []) == several.again(())
    assert ([], [TP]) == RefusedClaims(left=[claim]).again(())


def test_only_partitions_with_one_key_are_read_again_at_one_revision() -> None:
    """
    Both keys are made at once, perhaps between the two reads.
    """
    both = keys_of(None)
    one = {leader_key(TP): both[leader_key(TP)]}

    assert [[], [TP], []] == [read_apart([TP], keys) for keys in (both, one, {})]
