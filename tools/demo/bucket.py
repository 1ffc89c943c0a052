"""The objects in the bucket by kind, from the names in `formats/layout`.

Shell.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from driftlog_tiering.formats import layout

PUT_DOLLARS: Final = 0.005 / 1_000
"""S3 Standard in us-east-1: $0.005 for 1,000 PUTs."""

KINDS: Final[dict[type, str]] = {
    layout.SegmentKey: "sealed segments (Parquet)",
    layout.FlushObjectKey: "flush objects (sealed; deleted after 12 h)",
    layout.ManifestKey: "manifests",
    layout.SegmentListKey: "lists of older segments",
    layout.ProducerSnapshotKey: "producer snapshots",
    layout.TopicKey: "topic files",
    layout.DeletedKey: "topic files",
    layout.ClusterKey: "cluster.json",
    layout.ProducerIdsKey: "blocks of producer ids",
    layout.GroupSnapshotKey: "snapshots of groups",
    layout.FinalHeadKey: "ends of sessions",
    layout.ImportKey: "imports",
    layout.AuditKey: "audit records",
}


@dataclass(frozen=True, slots=True)
class Held:
    """Objects of one kind."""

    kind: str
    objects: int
    size_bytes: int


def holdings(root: Path) -> list[Held]:
    """The objects of a directory store, in the order of `KINDS`."""
    objects: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for path in root.rglob("*"):
        key = path.relative_to(root).as_posix()
        if not path.is_file() or key.startswith("."):
            continue
        kind = KINDS[type(layout.parse_key(key))]
        objects[kind] += 1
        sizes[kind] += path.stat().st_size
    kinds = dict.fromkeys(KINDS.values())
    return [Held(kind, objects[kind], sizes[kind]) for kind in kinds if objects[kind]]
