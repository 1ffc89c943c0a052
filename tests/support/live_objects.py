"""What a bucket in a directory holds, and what of it metadata names.

Shell.
"""

import os
from pathlib import Path

from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifest_codec import decode_manifest


def stored_keys(objects: Path) -> set[str]:
    """All objects, without what is not finished.  Agents may write and delete meanwhile."""
    return {
        str((Path(folder) / name).relative_to(objects))
        for folder, _, names in os.walk(objects)  # which passes by a folder that is gone
        for name in names
        if ".tmp" not in Path(folder).parts
    }


def live_keys(objects: Path) -> set[str]:
    """What the newest manifests name, they themselves, and what stays for ever."""
    live = {
        key for key in stored_keys(objects) if key.startswith(("cluster.json", "producer-ids/"))
    }
    for folder in objects.glob("topics/*/*"):
        if (folder / "topic" / "deleted.json").exists():
            continue
        live |= {str(path.relative_to(objects)) for path in folder.glob("topic/*.json")}
        for partition in folder.glob("[0-9]*"):
            manifest = _newest_manifest(partition)
            live |= {manifest.key, *(segment.key for segment in manifest.segments)}
            if manifest.producers is not None:
                live.add(manifest.producers.key)
    return live


def _newest_manifest(partition: Path) -> Manifest:
    """Read once more when a collector has deleted it: then there is a newer one."""
    while True:
        newest = min(partition.glob("manifest/*.json"))
        try:
            return decode_manifest(newest.read_bytes())
        except FileNotFoundError:
            continue
