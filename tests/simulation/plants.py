"""Every planted bug: seeds that notice it, and where others are found when schedules have changed.

    python -m tests.simulation --planted NAME --seeds 40    which seeds of its kind notice it
    python -m tests.simulation --planted all                which bug its own seeds do not notice

Pin seeds that are quick.  A bug that less than one seed in fifty of its kind notices wants a fault
that is aimed (`aimed`, `one_sided`), or a promise that is looked at sooner, not luck.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.simulation.age_planted import AGE_BUGS
from tests.simulation.aimed import has_slow_keep_alives, is_aimed
from tests.simulation.bucket_faults import has_foreign_objects
from tests.simulation.bucket_planted import BUCKET_BUGS
from tests.simulation.clocks import has_clock_jumps
from tests.simulation.cluster_planted import CLUSTER_BUGS, GROUP_BUGS
from tests.simulation.collecting import has_collecting
from tests.simulation.collecting_planted import COLLECTING_BUGS
from tests.simulation.compaction import has_compaction
from tests.simulation.compaction_planted import COMPACTION_BUGS
from tests.simulation.consumer_requests import has_requests
from tests.simulation.deletions import has_deletions
from tests.simulation.ending import has_ending
from tests.simulation.ending_planted import ENDING_BUGS
from tests.simulation.expiry_seeds import has_retention
from tests.simulation.failing_disks import has_failing_disk
from tests.simulation.format_levels import is_raised
from tests.simulation.hanging_bucket import hangs_in_a_hand_over, has_hanging_bucket
from tests.simulation.long_outages import has_long_outage
from tests.simulation.many_producers import has_many_producers
from tests.simulation.merging_planted import MERGING_BUGS, compacted, expires
from tests.simulation.older_metadata import has_older_metadata
from tests.simulation.one_sided import has_refusals
from tests.simulation.planted import BUGS, Plant
from tests.simulation.request_planted import REQUEST_BUGS
from tests.simulation.restored import has_restore
from tests.simulation.restored_planted import (
    RESTORED_BUGS,
    RESTORED_GROUP_BUGS,
    RESTORED_TOPIC_BUGS,
)
from tests.simulation.restored_topics import has_altered_topic
from tests.simulation.retention_planted import RETENTION_BUGS, both, by_size, by_time
from tests.simulation.runner import run_seed
from tests.simulation.slow_upkeep import has_slow_consolidation, has_slow_sealing
from tests.simulation.store_loss import has_store_loss, is_restored_while_idle
from tests.simulation.store_loss_planted import STORE_LOSS_BUGS
from tests.simulation.unavailable_planted import UNAVAILABLE_BUGS
from tests.simulation.untrue_absence import has_untrue_absence
from tests.simulation.world import has_threads, is_cluster

Kind = Callable[[int], bool]
"""Whether a seed has what it takes to notice a bug."""

_OTHERS: Final = 12
"""Seeds that a test tries when none of the bug's own notices it: each takes one to four seconds."""

SEEN_AT: Final[dict[str, tuple[int, ...]]] = {
    "unknown_commit_is_success": (3, 2, 0),
    "acknowledged_when_stored": (0, 1, 2),
    "old_sessions_live_on": (0, 1, 4),
    "leftovers_forgotten": (1, 0, 2),
    "duplicate_answered_at_once": (2, 0, 3),
    "acks_one_before_sync": (0, 1, 2),
    "acks_one_behind_a_hole": (527, 506),
    "sync_failure_ignored": (91, 191, 161),
    "records_forgotten_early": (0, 1, 2),
    "rewrite_leaves_out_what_is_needed": (0, 1, 2),
    "tail_told_of_the_wrong_place": (4, 9, 3),
    "slices_changed_under_reads": (4, 54),
    "producers_not_restored": (3, 4, 5),
    "snapshot_not_loaded": (1, 4, 2),
    "manifest_ahead_not_adopted": (6, 0, 2),
    "leader_epoch_not_raised": (0, 1, 2),
    "directories_removed_at_once": (43, 9, 13),
    "dead_session_goes_on": (6, 7, 11),
    "epoch_rule_ignored": (511, 513, 501),
    "displaced_records_forgotten": (98, 38, 105),
    "set_aside_whatever_is_there": (102, 55, 78),
    "decided_by_offsets_alone": (32, 52),
    "own_clock_not_asked": (3, 9, 1),
    "nobody_told_of_the_end": (510, 531),
    "parked_not_told_of_the_end": (187, 7, 117),
    "torn_entry_ends_the_directory": (9, 17, 4),
    "judged_by_half_of_the_window": (27, 47, 37),
    "sync_trusted_after_a_failed_one": (91, 291, 161),
    "what_comes_behind_a_refused_batch_is_taken": (20, 24, 28),
    "sealing_holds_nobody": (111, 11, 71),
    "consolidation_holds_nobody": (51, 251, 151),
    "disk_never_tried_again": (61, 161, 91),
    "led_without_its_records": (0, 2, 1),
    "read_above_the_high_watermark": (0, 1, 2),
    "memory_not_given_up": (4, 9, 6),
    "sealing_forgets_log_start": (9, 19, 25),
    "deletion_told_before_it_is_stored": (19, 9, 25),
    "manifest_forgets_what_is_left": (9, 25, 19),
    "no_grace_for_garbage": (0, 12, 6),
    "committed_however_old": (6, 56, 106),
    "what_may_be_committed_is_garbage": (206, 56, 106),
    "stored_again_after_an_unanswered_commit": (231, 6, 256),
    "a_missing_key_is_a_fresh_partition": (26, 12, 6),
    "older_stores_are_not_compared": (66, 86, 62),
    "producer_ids_go_back": (26, 12, 6),
    "producer_ids_are_not_marked": (26, 12, 6),
    "released_with_flushes_on_their_way": (15, 25, 12),
    "left_with_flushes_on_their_way": (38, 2, 62),
    "admission_goes_on_while_it_is_released": (2, 5, 8),
    "claimed_beside_a_live_session": (2, 5, 8),
    "claimed_without_comparing_the_keys": (2, 8, 5),
    "records_of_the_warm_up": (8, 2, 5),
    "commits_without_a_session": (108, 138, 242),
    "lease_counted_from_the_answer": (375, 395, 275),
    "serves_until_somebody_says_so": (22, 25, 28),
    "released_without_an_answer_and_gone_on": (512, 515, 508),
    "late_releases_count": (505, 508, 512),
    "served_on_after_a_hand_over": (12, 15, 2),
    "epoch_kept_after_a_release": (2, 8, 5),
    "those_before_forgotten": (2, 5, 8),
    "sealed_ends_of_old_leaders": (35, 2, 52),
    "moved_without_producers": (25, 22, 5),
    "two_plans": (2, 12, 5),
    "sessions_read_while_they_change": (215, 218, 412),
    "never_steps_down": (302, 815, 308),
    "nobody_says_that_it_could": (302, 325, 308),
    "others_are_better_always": (315, 305, 805),
    "commits_prove_reads": (385, 322, 372),
    "fit_again_at_once": (302, 335, 328),
    "offsets_from_memory": (528, 578, 518),
    "groups_written_by_two": (548, 538, 518),
    "late_copies_of_commits_count": (598, 1508, 1528),
    "given_before_it_is_given_up": (38, 58, 18),
    "told_before_it_is_stored": (558, 578, 538),
    "age_begins_with_the_leader": (80, 87, 84),
    "age_by_wall_clocks_alone": (87, 88),
    "sessions_not_counted": (181, 184, 183),
    "producers_forgotten_by_count": (23, 20, 21),
    "producers_forgotten_while_they_live": (23, 20, 21),
    "budget_refuses_those_that_are_known": (20, 23, 21),
    "older_revisions_believed": (192, 32, 132),
    "lost_commits_not_noticed": (283, 296, 396),
    "other_clusters_believed": (83, 121, 92),
    "heads_read_for_commits_alone": (521, 1146, 1196),
    "leaps_believed": (32, 132, 532),
    "begun_in_any_store": (121, 221, 146),
    "absence_is_believed": (613, 611, 616),
    "never_looked_for_again": (627, 611),
    "stopped_and_released_together": (705, 728, 722),
    "stopped_before_its_last_flush": (768, 708, 705),
    "never_admitted_again": (782, 768, 708),
    "foreign_flush_objects_are_collected": (3, 33, 44),
    "foreign_objects_of_topics_are_collected": (3, 44, 33),
    "foreign_objects_end_a_look": (3, 44, 33),
    "foreign_objects_hide_manifests": (3, 33, 44),
    "map_with_a_hole": (97, 90, 29),
    "merge_crosses_cleaned_end": (40, 140, 240),
    "merge_spans_too_long_a_time": (34, 234, 253),
    "replacement_by_range_and_not_identity": (40, 140, 1940),
    "flush_objects_stay": (3, 14, 25),
    "flush_records_stay": (3, 14, 25),
    "partition_keys_stay": (3, 14, 25),
    "leader_keys_stay": (3, 14, 25),
    "objects_of_deleted_topics_stay": (3, 14, 25),
    "tombstones_stay": (80, 14, 25),
    "heads_stay": (3, 25, 14),
    "fetch_answers_after_the_lease": (245, 589, 616),
    "fetch_answers_what_is_not_committed": (19, 16, 22),
    "fetch_ignores_log_start": (19, 39, 25),
    "fetch_leaves_out_the_first_batch": (16, 19, 22),
    "fetches_not_told_of_the_end": (566, 1539, 546),
    "list_offsets_ignores_log_start": (325, 289, 4495),
    "what_is_not_committed_expires": (270, 247, 249),
    "segments_expire_by_their_smallest_timestamp": (465, 470, 494),
    "what_is_not_adopted_counts_twice": (1365, 1553, 3953),
    "log_start_of_an_old_read": (549, 849, 1649),
    "manifest_moves_before_the_key": (265, 294),
    "checked_once": (230, 247, 265),
    "failed_moves_are_forgotten": (349, 149),
    "nobody_looks_whose_the_bucket_is": (20_053, 20_056, 20_058),
    "looks_count_from_their_answers": (20_043, 20_042, 20_049),
    "looks_age_by_a_clock_that_stops": (20_043, 20_042, 20_065),
    "groups_are_not_written": (20_018, 20_038),
    "an_older_snapshot_of_groups": (20_048, 20_078),
    "a_snapshot_has_a_later_revision_than_its_groups": (20_018, 20_048),
    "snapshots_of_groups_are_put_once": (20_048, 20_068),
    "numbers_of_topic_files_are_free_again": (25_004,),
    "topic_files_go_before_the_next_is_there": (25_004, 25_002),
    "collected_before_grace": (10_001,),
    "grace_by_an_agents_clock": (10_080,),
    "names_used_for_later_pages": (10_001,),
    "missing_version_is_empty": (10_001,),
    "version_goes_before_its_objects": (10_001,),
    "only_the_newest_version_counts": (10_001,),
}
"""Seeds that notice a bug, tried first; the quickest first."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug, and what notices it."""

    plant: Plant
    kind: Kind
    says: str = ""
    """What the broken promise that is meant says."""

    @property
    def name(self) -> str:
        """As `--planted` has it."""
        return self.plant.__name__

    @property
    def seeds(self) -> tuple[int, ...]:
        """That notice it."""
        return SEEN_AT.get(self.name, ())

    def others(self, start: int = 0) -> Iterator[int]:
        """Seeds from *start* on that have what it takes."""
        return filter(self.kind, itertools.count(start))

    def noticed(self, seed: int) -> bool:
        """Whether the seed notices the bug."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            return any(self.says in story for story in run_seed(seed).failed.values())

    def found(self) -> int | None:
        """The first of its seeds that notices it, or of some others; None: none does."""
        others = itertools.islice((s for s in self.others() if s not in self.seeds), _OTHERS)
        return next(filter(self.noticed, itertools.chain(self.seeds, others)), None)


def _has_restored_groups(seed: int) -> bool:
    return has_restore(seed) and _has_groups(seed) and not is_raised(seed)


def _has_groups(seed: int) -> bool:
    return seed % 10 == 8


def _has_kip_848(seed: int) -> bool:
    return seed % 20 == 18


def _refusals(seed: int) -> bool:
    return is_cluster(seed) and has_refusals(seed)


def _hand_over(seed: int) -> bool:
    return is_cluster(seed) and hangs_in_a_hand_over(seed)


def _reads_what_is_deleted(seed: int) -> bool:
    return has_requests(seed) and has_deletions(seed)


def _is_single(seed: int) -> bool:
    return not is_cluster(seed)


def _aimed(kind: Kind) -> Kind:
    return lambda seed: is_aimed(seed) and kind(seed)


_AIMED: Final[dict[str, Kind]] = {
    "nobody_told_of_the_end": _aimed(_is_single),
    "what_comes_behind_a_refused_batch_is_taken": has_many_producers,
    "sealing_holds_nobody": has_slow_sealing,
    "consolidation_holds_nobody": has_slow_consolidation,
    "sync_failure_ignored": has_failing_disk,
    "sync_trusted_after_a_failed_one": has_failing_disk,
    "disk_never_tried_again": has_failing_disk,
    "acks_one_behind_a_hole": _aimed(_is_single),
    "epoch_rule_ignored": _aimed(_is_single),
    "displaced_records_forgotten": is_cluster,
    "set_aside_whatever_is_there": is_cluster,
    "decided_by_offsets_alone": is_cluster,
    "released_without_an_answer_and_gone_on": _aimed(is_cluster),
    "late_releases_count": _aimed(is_cluster),
    "fetches_not_told_of_the_end": _aimed(lambda seed: _is_single(seed) and has_requests(seed)),
    "fetch_ignores_log_start": _reads_what_is_deleted,
    "list_offsets_ignores_log_start": _reads_what_is_deleted,
    "sessions_read_while_they_change": lambda seed: is_cluster(seed) and has_threads(seed),
    "offsets_from_memory": _aimed(_has_groups),
    "groups_written_by_two": _aimed(_has_groups),
    "late_copies_of_commits_count": _aimed(_has_groups),
    "given_before_it_is_given_up": _has_kip_848,
    "told_before_it_is_stored": _aimed(_has_kip_848),
    "lease_counted_from_the_answer": has_slow_keep_alives,
    "never_steps_down": _refusals,
    "nobody_says_that_it_could": _refusals,
    "others_are_better_always": _refusals,
    "commits_prove_reads": _refusals,
    "fit_again_at_once": _refusals,
    "stopped_and_released_together": _hand_over,
    "stopped_before_its_last_flush": _hand_over,
    "never_admitted_again": _hand_over,
    "heads_read_for_commits_alone": is_restored_while_idle,
    "age_begins_with_the_leader": has_clock_jumps,
    "age_by_wall_clocks_alone": has_clock_jumps,
    "sessions_not_counted": has_clock_jumps,
    "committed_however_old": has_long_outage,
    "what_may_be_committed_is_garbage": has_long_outage,
    "stored_again_after_an_unanswered_commit": has_long_outage,
    "a_missing_key_is_a_fresh_partition": has_older_metadata,
    "older_stores_are_not_compared": has_older_metadata,
    "producer_ids_go_back": has_older_metadata,
    "producer_ids_are_not_marked": has_older_metadata,
    "grace_by_an_agents_clock": lambda s: has_collecting(s) and has_clock_jumps(s),
    "sealing_forgets_log_start": has_deletions,
    "deletion_told_before_it_is_stored": has_deletions,
    "manifest_forgets_what_is_left": has_deletions,
    "segments_expire_by_their_smallest_timestamp": by_time,
    "what_is_not_adopted_counts_twice": by_size,
    "log_start_of_an_old_read": both,
    "merge_spans_too_long_a_time": expires,
}
"""Bugs that take more than the others of their module to be noticed."""


def _all(plants: Iterable[Plant], kind: Kind, says: str = "") -> list[Planted]:
    return [Planted(plant, _AIMED.get(plant.__name__, kind), says) for plant in plants]


PLANTED: Final[tuple[Planted, ...]] = (
    *_all(BUGS, lambda _: True),
    *_all(CLUSTER_BUGS, is_cluster),
    *_all(GROUP_BUGS, _has_groups),
    *_all(AGE_BUGS, has_many_producers),
    *_all(STORE_LOSS_BUGS, has_store_loss),
    *_all(RESTORED_BUGS, has_restore, says="was acknowledged"),
    *_all(RESTORED_GROUP_BUGS, _has_restored_groups),
    *_all(RESTORED_TOPIC_BUGS, has_altered_topic, says="topic file"),
    *_all(UNAVAILABLE_BUGS, lambda s: has_untrue_absence(s) or has_hanging_bucket(s)),
    *_all(BUCKET_BUGS, lambda s: has_foreign_objects(s) and has_ending(s)),
    *_all(ENDING_BUGS, has_ending, says="left at the end"),
    *_all(REQUEST_BUGS, has_requests),
    *_all(RETENTION_BUGS, has_retention),
    *_all(COMPACTION_BUGS, has_compaction),
    *_all(MERGING_BUGS, compacted),
    *_all(COLLECTING_BUGS, has_collecting, says="collected: "),
)


def planted(name: str) -> Planted:
    """The bug of that name.

    Raises:
        KeyError: there is none.
    """
    return {bug.name: bug for bug in PLANTED}[name]
