"""What a bucket in a directory holds, and what of it metadata names.

Shell.
"""

from pathlib import Path

from driftlog_tiering.formats.manifest_codec import decode_manifest


def stored_keys(objects: Path) -> set[str]:
    """All objects, without what is not finished."""
    return {
        str(path.relative_to(objects))
        for path in objects.rglob("*")
        if path.is_file() and ".tmp" not in path.parts
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
            newest = min(partition.glob("manifest/*.json"))
            manifest = decode_manifest(newest.read_bytes())
            live |= {manifest.key, *(segment.key for segment in manifest.segments)}
            if manifest.producers is not None:
                live.add(manifest.producers.key)
    return live
