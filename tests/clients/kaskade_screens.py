"""What kaskade's screens show, as JSON: run by the interpreter that has kaskade, which is not ours.

    admin BOOTSTRAP TOPIC NEW_TOPIC     the list of topics, TOPIC's details; then NEW_TOPIC is made,
                                        extended and deleted with the forms, as somebody types
    records BOOTSTRAP TOPIC COUNT       the table of records, and the details of one

Keys are pressed and cells are read; nothing of kaskade is called that a key does not call.
Rows are sorted, for partitions and groups come in any order.
Shell.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from kaskade.admin import KaskadeAdmin  # type: ignore[import-not-found]
from kaskade.consumer import KaskadeConsumer  # type: ignore[import-not-found]
from kaskade.deserializers import Deserialization  # type: ignore[import-not-found]
from textual.widgets import DataTable, Input  # type: ignore[import-not-found]

_SCREEN = (220, 60)
_DEADLINE_S = 40.0
_PAUSE_S = 0.05


def _rows(table: Any) -> list[list[str]]:
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def _notices(app: Any) -> list[str]:
    """What pops up from now on; what the app has of it vanishes after seconds."""
    notify, notices = app.notify, []

    def notified(message: str, *, title: str = "", **more: Any) -> None:
        notices.append(f"{title}: {message}")
        notify(message, title=title, **more)

    app.notify = notified
    return notices


async def _until(pilot: Any, holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + _DEADLINE_S
    while not holds():
        if time.monotonic() > give_up:
            raise TimeoutError(what)
        await pilot.pause(_PAUSE_S)


async def _admin(bootstrap: str, topic: str, new_topic: str) -> dict[str, Any]:
    app = KaskadeAdmin({"bootstrap.servers": bootstrap}, refresh_interval=0)
    notices = _notices(app)
    async with app.run_test(size=_SCREEN, notifications=True) as pilot:
        topics = app.query_one("#topics-table", DataTable)

        def known() -> bool:
            """Every figure of every topic has come: "…" and "—" stand for one that has not."""
            rows = _rows(topics)
            return bool(rows) and not any(cell in "…—" for row in rows for cell in row)

        def names() -> list[str]:
            return [row[0] for row in _rows(topics)]

        await _until(pilot, lambda: known() and topic in names(), "the topics are not shown")
        await pilot.press("/", *topic, "enter")
        await _until(pilot, lambda: names() == [topic], "the filter does not filter")
        shown: dict[str, Any] = {"topics": _rows(topics)}

        await pilot.press("d")
        await _until(pilot, lambda: bool(app.screen.query("#groups-table")), "no details")
        shown["cells"] = {
            cell.id: cell._metadata_value  # noqa: SLF001  # kaskade shows it nowhere else
            for cell in app.screen.query(".topic-metadata-cell")
        }
        shown["tables"] = {table.id: sorted(_rows(table)) for table in app.screen.query(DataTable)}
        await pilot.press("escape")
        await _until(pilot, lambda: len(app.screen_stack) == 1, "the details stay")
        await pilot.press("escape")

        await pilot.press("n", *new_topic, "ctrl+s")
        await _until(pilot, lambda: new_topic in names() and known(), "no new topic")
        await pilot.press("/", *new_topic, "enter")
        await _until(pilot, lambda: names() == [new_topic], "the filter does not filter")
        shown["created"] = _rows(topics)

        await pilot.press("e")
        await _until(pilot, lambda: bool(app.screen.query("#partitions")), "no form")
        app.screen.query_one("#partitions", Input).value = "3"
        await pilot.press("ctrl+s")
        await _until(pilot, lambda: [row[1] for row in _rows(topics)] == ["3"], "not extended")
        await _until(pilot, known, "the extended topic is not shown")
        shown["extended"] = _rows(topics)

        await pilot.press("ctrl+d", *new_topic, "enter")
        await _until(pilot, lambda: not names(), "not deleted")
        # It goes on reading figures, and fails if its table goes meanwhile.
        await _until(pilot, lambda: all(w.is_finished for w in app.workers), "it goes on reading")
    return {**shown, "notices": notices}


async def _records(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    kafka = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
    text = Deserialization.STRING
    app = KaskadeConsumer(topic, kafka, {}, {}, {}, text, text)
    notices = _notices(app)
    async with app.run_test(size=_SCREEN, notifications=True) as pilot:
        table = app.query_one("#records-table", DataTable)
        await _until(pilot, lambda: bool(table.row_count == count), "the records are not shown")
        await _until(pilot, lambda: not table.loading, "it goes on reading")
        rows = _rows(table)
        shown: dict[str, Any] = {"records": sorted(rows, key=_place)}
        await pilot.press(*["down"] * rows.index(shown["records"][0]), "enter")
        await _until(pilot, lambda: bool(app.screen.query("#record-headers-list")), "no details")
        shown["cells"] = {
            cell.id: cell._metadata_value  # noqa: SLF001  # kaskade shows it nowhere else
            for cell in app.screen.query(".record-metadata-cell")
        }
        shown["headers"] = _rows(app.screen.query_one("#record-headers-list"))
    return {**shown, "notices": notices}


def _place(row: list[str]) -> tuple[int, int]:
    *_, partition, offset, _headers = row
    return int(partition), int(offset)


def main() -> None:
    what, bootstrap, topic, more = sys.argv[1:]
    shown = _admin(bootstrap, topic, more) if what == "admin" else None
    print(json.dumps(asyncio.run(shown or _records(bootstrap, topic, int(more)))))


if __name__ == "__main__":
    main()
