"""Every event of an agent's log is explained, with its level, in docs/failures.md."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from driftlog_metadata.witness.witness import REPLACED, WENT_BACK

_CHECKOUT: Final = Path(__file__).resolve().parents[1]
ROOT: Final = _CHECKOUT / "agents" / "driftlog_agents"
PAGE: Final = _CHECKOUT / "docs" / "failures.md"
HEADING: Final = "## Every log event\n"

LEVELS: Final = {"exception": "error"} | {
    name: name for name in ("debug", "info", "warning", "error", "critical")
}
"""What a method of a log is called, and the level of its lines."""

FORWARDED: Final = {
    ("hang_up", ""): "warning",
    ("_failed", "log/ingest/flusher.py"): "warning",
}
"""Methods that are given an event and log it: name, module (empty: any), level."""

VARIABLES: Final = {
    ("log/ingest/flusher.py", "event"): (),
    ("log/compaction/repeated_rewrites.py", "self._failed"): ("compaction_failed", "merge_failed"),
    ("log/compaction/repeated_rewrites.py", "self._void"): ("compaction_void", "merge_void"),
    ("log/objects/object_retry.py", "self._event"): (
        "footer_read_repeated",
        "manifest_check_repeated",
        "partition_load_repeated",
    ),
    ("network/connection.py", "event"): (),
    ("health/metadata_store_monitor.py", "evidence.event"): (REPLACED, WENT_BACK),
}
"""Where an event is no literal, and what it may be; empty: `FORWARDED` finds it."""


def found() -> dict[str, set[str]]:
    """Every event in the code, with its levels."""
    levels: defaultdict[str, set[str]] = defaultdict(set)
    for file in sorted(ROOT.rglob("*.py")):
        module = str(file.relative_to(ROOT))
        for node in ast.walk(ast.parse(file.read_text())):
            for event, level in _events(node, module):
                levels[event].add(level)
    return levels


def _events(node: ast.AST, module: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Dict):
        # The process log makes lines of its own.
        fields = {
            str(key.value): str(value.value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
        }
        if "event" in fields and "level" in fields:
            yield fields["event"], fields["level"]
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return
    name = node.func.attr
    level = FORWARDED.get((name, "")) or FORWARDED.get((name, module))
    if level is None and "log" in ast.unparse(node.func.value):
        level = LEVELS.get(name)
    if level is None:
        return
    match node.args[0]:
        case ast.Constant(value=str(event)):
            yield event, level
        case ast.IfExp(body=ast.Constant(value=str(one)), orelse=ast.Constant(value=str(other))):
            yield one, level
            yield other, level
        case other_form:
            yield from ((event, level) for event in VARIABLES[module, ast.unparse(other_form)])


def explained() -> dict[str, set[str]]:
    """Every event in the page's table, with its levels; a row may have several."""
    levels: dict[str, set[str]] = {}
    for line in PAGE.read_text().partition(HEADING)[2].splitlines():
        if line.startswith("| `"):
            names, level, happened, advice = line.strip("| ").split(" | ")
            assert happened.endswith((".", ")"))
            assert advice.endswith((".", ")"))
            for name in names.split(", "):
                assert name not in levels, f"{name} is explained twice"
                levels[name.strip("`")] = set(level.split(", "))
    return levels


def test_every_event_is_explained_with_its_level() -> None:
    """
    Else the table lacks an event, or explains what no agent says any more.
    """
    assert dict(found()) == explained()
