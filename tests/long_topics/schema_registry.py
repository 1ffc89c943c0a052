"""Apicurio Registry: subjects and versions of schemas, in a compacted topic.

It has Confluent's API.  Confluent's own registry is in no registry of packages that this project
uses.  Each message of Apicurio's journal has a key of its own.

Shell.
"""

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.long_topics.programs import JVM, JavaProgram, repeated, rest, wait_for
from tests.support.components import java, schema_registry_archive
from tests.support.process_usage import free_port

JOURNAL: Final = "kafkasql-journal"
_SUBJECTS: Final = 20
_START_S: Final = 180.0


class SchemaRegistry:
    """See the module.  Its journal's topic exists before it starts."""

    name = "Apicurio Registry"
    topics: tuple[str, ...] = (JOURNAL,)
    inputs: tuple[str, ...] = ()

    def __init__(self, bootstrap: str, folder: Path) -> None:
        folder.mkdir()
        with tarfile.open(schema_registry_archive()) as archive:
            archive.extractall(folder, filter="data")
        (runner,) = folder.glob("*-runner.jar")
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/apis/ccompat/v7/subjects"
        environment = {
            "APICURIO_STORAGE_KIND": "kafkasql",
            "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": bootstrap,
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(port),
            "QUARKUS_HTTP_ACCESS_LOG_ENABLED": "false",
        }
        self._program = JavaProgram([str(java()), *JVM, "-jar", str(runner)], folder, environment)
        self._schemas: dict[str, list[str]] = {}
        """By subject: its versions."""
        self._made = 0

    def start(self) -> None:
        self._program.start()
        self._wait_until_up()

    def work(self) -> None:
        """One more version of a subject, with one more field; sometimes a subject is deleted."""
        self._made += 1
        subject = f"subject-{self._made % _SUBJECTS}"
        versions = self._schemas.setdefault(subject, [])
        if len(versions) >= 5:
            repeated("DELETE", f"{self._url}/{subject}")
            repeated("DELETE", f"{self._url}/{subject}?permanent=true")
            del self._schemas[subject]
            return
        fields = [
            {"name": f"f{n}", "type": "string", "default": ""} for n in range(len(versions) + 1)
        ]
        schema = json.dumps({"type": "record", "name": f"r{self._made}", "fields": fields})
        repeated("POST", f"{self._url}/{subject}/versions", {"schema": schema})
        versions.append(schema)

    def restart(self) -> None:
        """Kill it: its database is in memory, and comes back from the journal.

        Raises:
            TimeoutError: it does not.
        """
        self._program.kill()
        self._program.start()
        self._check()

    def finish(self) -> None:
        """As `restart`, after a stop; then stop for good."""
        self._program.stop()
        self._program.start()
        self._check()
        self._program.stop()

    def close(self) -> None:
        self._program.kill()

    def check_bucket(
        self, rows: Mapping[str, Mapping[bytes, tuple[bytes | None, ...]]]
    ) -> list[str]:
        """Failures of the journal as it stands in the bucket."""
        return [] if len(rows[JOURNAL]) >= self._made else [f"{JOURNAL}: {len(rows[JOURNAL])} keys"]

    @property
    def done(self) -> str:
        return f"{self._made} schemas made, or subjects deleted"

    def _check(self) -> None:
        self._wait_until_up()
        found: Any = None

        def same() -> bool:
            nonlocal found
            found = {subject: self._versions(subject) for subject in repeated("GET", self._url)}
            wanted = {
                subject: [json.loads(each) for each in versions]
                for subject, versions in self._schemas.items()
            }
            return bool(found == wanted)

        try:
            wait_for("the schemas", same, _START_S, self._program)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {found}, not {self._schemas}") from error

    def _versions(self, subject: str) -> list[Any]:
        """Its schemas; while the registry reads its journal, a listed version may be away again."""
        numbers = repeated("GET", f"{self._url}/{subject}/versions")
        said = [repeated("GET", f"{self._url}/{subject}/versions/{n}") for n in numbers or ()]
        return [json.loads(one["schema"]) for one in said if one is not None]

    def _wait_until_up(self) -> None:
        def is_up() -> bool:
            try:
                return rest("GET", self._url, timeout_s=5) is not None
            except OSError:
                return False

        wait_for("the registry answers", is_up, _START_S, self._program)
