"""What follows from the reads of a partition with a loss.

If it failed, an operator would accept another loss than the one shown, or a live leader's partition
would be written.
"""

from dataclasses import replace
from typing import Final

import pytest

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.recovery.accepted_loss_plan import LogPiece
from driftlog_agents.log.recovery.leftover_batches import REPAIR
from driftlog_agents.log.recovery.lost_partition import (
    EPOCHS_SKIPPED,
    KeysRead,
    LedElsewhereError,
    LostPartition,
    NotLostError,
    UnsealedPart,
    found_sealed,
    is_served,
    require_lost,
    require_repairable,
    slices_in,
)
from driftlog_metadata.schema.codec import encode_leader, encode_partition_state
from driftlog_metadata.schema.keys import flush_key, leader_key, partition_key
from driftlog_metadata.schema.model import Leader, PartitionState, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_metadata.stores.store import KeyValue, TxnResult
from driftlog_tiering.formats.manifest import LeaderEpoch, empty_manifest
from tests.agents.log.leadership.test_taken_partitions import MINE, OLD, TOPIC, TPS, footer_of

TP: Final = TPS[0]
EMPTY: Final = empty_manifest("t", TP)
LED: Final = Leader(OLD, 4)
STATE: Final = PartitionState(sealed_end=0, sessions=(OLD,))


def keys_of(
    leader: Leader | None = LED,
    state: PartitionState | None = STATE,
    *,
    tp: TopicPartition = TP,
) -> KeysRead:
    """Both keys, or what is left of them."""
    leaders = [KeyValue(leader_key(tp), encode_leader(leader), 1, 7)] if leader else []
    states = [KeyValue(partition_key(tp), encode_partition_state(state), 1, 8)] if state else []
    return KeysRead.of(tp, [leaders, states])


def lost_of(
    keys: KeysRead, *batches: tuple[int, int, int], lost: str = "", reason: str = "why"
) -> LostPartition:
    """The loss where the bucket has *batches* in one object, and not the object *lost*."""
    part = UnsealedPart(keys=keys, missing=keys.missing(), manifest=EMPTY, read_at_ms=1)
    part.read["o"] = slices_in(footer_of(*batches), TP, "o")
    part.add("o")
    part.lost += [lost] if lost else []
    return part.found(reason, (0, -1))


def test_a_missing_leader_key_is_made_again_above_every_epoch_there_was() -> None:
    """
    Leaders that committed nothing had epochs, too.  Every listed session must be over for it.
    """
    found = lost_of(keys_of(None), (0, 0, 3))

    assert 1 + EPOCHS_SKIPPED + 1 == found.claim.epoch
    assert (OLD,) == found.gone
    with pytest.raises(NotLostError, match="may lead it"):
        found.require_over([OLD, MINE], MINE)
    assert 1 == len(found.compares(MINE))
    assert [f"{leader_key(TP)} is missing"] == list(found.plan.reasons)


def test_a_missing_partition_key_is_made_again_from_the_footers() -> None:
    """
    Any session may have batches of the partition: all that have some are listed.
    """
    keys = keys_of(state=None)
    part = UnsealedPart(keys=keys, missing=keys.missing(), manifest=EMPTY, read_at_ms=1)
    found = lost_of(keys, (0, 0, 3))

    assert part.may_have(flush_key("any", 1))
    assert not part.may_have("/foreign")
    assert (5, (OLD,), 0) == (
        found.claim.epoch,
        found.claim.state.sessions,
        found.claim.state_revision,
    )


def test_a_partition_without_keys_is_not_lost_and_one_with_both_is_claimed_by_them() -> None:
    """
    The first is claimed by an agent by itself.
    """
    with pytest.raises(NotLostError, match="never had a leader"):
        keys_of(None, None).missing()
    with pytest.raises(UnavailableError):
        keys_of(None, None).state_of_served()
    with pytest.raises(CorruptError, match="is missing"):
        keys_of(None).state_of_served()
    claim = lost_of(keys_of(), (0, 0, 3)).claim
    assert (5, 7, 8, STATE) == (
        claim.epoch,
        claim.leader_revision,
        claim.state_revision,
        claim.state,
    )


@pytest.mark.parametrize(
    ("live", "error"),
    [([MINE], None), ([OLD], LedElsewhereError), ([MINE, OLD], LedElsewhereError)],
)
def test_a_live_leader_keeps_its_partition(live: list[str], error: type[Exception] | None) -> None:
    """
    The request belongs to its agent.
    """
    found = lost_of(keys_of(), (0, 0, 3))

    if error is None:
        found.require_over(live, MINE)
        return
    with pytest.raises(error):
        found.require_over(live, MINE)


def test_only_the_shown_loss_is_accepted() -> None:
    """
    And none where nothing is lost.
    """
    found = lost_of(keys_of(), (0, 0, 3), (0, 5, 6), reason="")
    with pytest.raises(NotLostError, match="nothing is lost"):
        lost_of(keys_of(), (0, 0, 3), reason="").require({})
    with pytest.raises(NotLostError, match="the plan has changed"):
        found.require({**found.plan.as_json(), "lost": []})

    found.require(found.plan.as_json())

    assert ((3, 5),) == found.plan.lost


def test_slices_that_overlap_are_ambiguous() -> None:
    """
    Two leaders' records at the same offsets: no plan.
    """
    with pytest.raises(NotLostError, match="ambiguous"):
        lost_of(keys_of(), (0, 0, 3), (0, 2, 4))


@pytest.mark.parametrize("succeeded", [True, False])
def test_a_claim_whose_answer_was_lost_is_found_by_its_epoch(succeeded: bool) -> None:
    """
    And another claim is not taken for it.
    """
    found = lost_of(keys_of(), (0, 0, 3))
    now = keys_of(Leader(MINE, 5))
    reads = ((now.leader_kv,), (now.state_kv,))
    result = TxnResult(succeeded, 9, () if succeeded else reads)  # type: ignore[arg-type]

    log = found.claimed("t", MINE, result)

    assert (5, (9, 9) if succeeded else (7, 8)) == (
        log.leader_epoch,
        (log.leader_revision, log.partition_revision),
    )
    if not succeeded:
        with pytest.raises(UnavailableError):
            replace(found, claim=replace(found.claim, leader=Leader(None, 9))).claimed(
                "t", MINE, result
            )


def test_pieces_have_their_slices_and_the_last_lost_range_our_epoch() -> None:
    """
    So recovery sees that batches of an older leader at these offsets are not in the log.
    """
    found = lost_of(keys_of(), (0, 0, 3), (0, 5, 6), lost="gone")
    log = found.claimed("t", MINE, TxnResult(True, 9, ()))
    pieces = found.plan.pieces

    parts = [found.part(log, piece, 0.0) for piece in pieces]

    assert [(0, 3, False), (3, 5, True), (5, 6, False)] == list(pieces[:3])
    assert [3, 3, 6, 6] == [part.high_watermark for part in parts]
    epochs = [found.epochs(log, piece) for piece in pieces]
    assert [None, (), None, (LeaderEpoch(5, 6),)] == epochs
    assert isinstance(pieces[-1], LogPiece)
    manifest = replace(EMPTY, end=pieces[-1].end, version=4)
    state = found.state_after(log, manifest, MINE)
    assert ((MINE,), 4, pieces[-1].end) == (
        state.sessions,
        state.manifest_version,
        state.sealed_end,
    )


def test_the_audit_record_names_what_was_there_before() -> None:
    """
    -1 where the key was gone.
    """
    found = lost_of(keys_of(), (0, 0, 3))
    without = lost_of(keys_of(state=None), (0, 0, 3))

    records = [each.audit("t", MINE, 1_234) for each in (found, without)]

    assert [(0, 0), (-1, -1)] == [(r.sealed_end, r.manifest_version) for r in records]
    assert [(5, 1_234, MINE)] * 2 == [
        (r.leader_epoch, r.accepted_at_ms, r.session_id) for r in records
    ]


def test_a_served_partition_without_lost_segments_has_no_loss() -> None:
    """
    Neither an offline nor a damaged one counts as served.
    """
    log = PartitionLog(topic="t", topic_id=TOPIC, partition=0, leader_epoch=4)
    served = is_served(log)
    log.damage = "its snapshot"
    damaged = is_served(log)
    log.damage, log.state = "", State.OFFLINE

    assert (True, False, False, False) == (served, damaged, is_served(log), is_served(None))
    assert () == found_sealed(keys_of(), EMPTY, 1, []).plan.reasons


def test_what_the_agents_disk_holds_is_not_lost() -> None:
    """
    A partition whose buffer file cannot be read waits for the disk, not for an operator's yes.
    """
    log = PartitionLog(topic="t", topic_id=TOPIC, partition=0, leader_epoch=4)
    require_repairable(None)
    require_repairable(log)
    log.state, log.offline_reason = State.OFFLINE, f"EIO; {REPAIR}"
    with pytest.raises(NotLostError, match="EIO"):
        require_repairable(log)
    log.state = State.CLOSED
    with pytest.raises(UnavailableError):
        require_repairable(log)


def test_nothing_is_lost_of_a_partition_that_misses_nothing() -> None:
    """
    Damage that an accepted loss cannot repair is named; an offline partition may have lost all.
    """
    plan = found_sealed(keys_of(), EMPTY, 1, []).plan
    log = PartitionLog(topic="t", topic_id=TOPIC, partition=0, leader_epoch=4)
    with pytest.raises(NotLostError, match="nothing is lost"):
        require_lost(log, plan)
    log.damage = "its snapshot"
    with pytest.raises(NotLostError, match="its snapshot"):
        require_lost(log, plan)
    log.damage, log.state = "", State.OFFLINE

    require_lost(log, plan)
    require_lost(None, plan)
