"""The cluster's file: agents and jobs that read another grace from it delete what others name."""

import pytest

from driftlog_metadata.schema.grace import HOUR_MS, Grace
from driftlog_metadata.schema.model import Cluster
from driftlog_tiering.formats.bucket_files import (
    CorruptFileError,
    decode_cluster,
    decode_grace,
    encode_cluster,
)
from driftlog_tiering.formats.stored_json import encode_json

OLD = b'{"format":"driftlog.cluster","format_version":1,"cluster_id":"an-id","crc32":"'


def test_grace_stands_in_the_clusters_file() -> None:
    """
    With the cluster's id, which reads as before.
    """
    body = encode_cluster(Cluster("an-id"), Grace(60_000))

    assert (Cluster("an-id"), Grace(60_000)) == (decode_cluster(body), decode_grace(body))


def test_a_file_without_grace_means_twelve_hours() -> None:
    """
    Files of the first releases have none.
    """
    old = encode_json("driftlog.cluster", 1, {"cluster_id": "an-id"})

    assert old.startswith(OLD)
    assert (Cluster("an-id", 1), 12 * HOUR_MS) == (decode_cluster(old), decode_grace(old).ms)
    assert decode_grace(old) == decode_grace(encode_cluster(Cluster("an-id"))) == Grace()


@pytest.mark.parametrize("grace_ms", [0, -1, 999, 2**63, "1", None, 1.5])
def test_a_grace_that_is_none_is_damage(grace_ms: object) -> None:
    """
    Zero would delete everything at once.
    """
    body = encode_json("driftlog.cluster", 1, {"cluster_id": "an-id", "grace_ms": grace_ms})

    with pytest.raises(CorruptFileError, match="grace_ms"):
        decode_grace(body)


def test_the_bounds_come_from_one_number() -> None:
    """
    Half of grace for what names objects; the rest of it is for requests on their way.
    """
    assert (6 * HOUR_MS, HOUR_MS) == (Grace().named_within_ms, Grace().short_ms)
    assert 30_000 == Grace(60_000).named_within_ms
