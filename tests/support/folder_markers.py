"""Folder markers, as S3 consoles and file gateways make them: empty objects whose keys end in a
slash, also of the very prefix under which a store has its objects."""

from pathlib import Path
from typing import Any

from driftlog_tiering.stores.object_store import ObjectStore
from driftlog_tiering.stores.s3_store import S3ObjectStore


async def make_markers(store: ObjectStore, *folders: str) -> None:
    """One for each of *folders*, which are ``""`` or end in a slash.

    A directory gets the folders themselves, and a store in memory can hold nothing of that kind.
    """
    if isinstance(store, S3ObjectStore):
        for folder in folders:
            # `put` refuses such keys.
            await store._write("put", folder, [], {})  # noqa: SLF001
    root: Any = getattr(store, "_root", None)
    if root is not None:
        for folder in folders:
            Path(root, folder).mkdir(parents=True, exist_ok=True)
