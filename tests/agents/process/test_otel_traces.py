"""A trace that shows other steps or times than a request had would send an operator astray."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Producer

from driftlog_agents.handlers.produce.traces import ProduceTrace
from driftlog_agents.log.ingest.flush_effects import FlushTimes
from driftlog_agents.process.otel_traces import OtelTraces
from tests.clients.conftest import make_topic
from tests.support.driftlog_process import DriftlogProcess

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="pip install 'driftlog[otel]'")

FLUSH = FlushTimes(7, 20.0, 21.0, 30.0, 31.0, 40.0)
TRACE = ProduceTrace(
    topic="t",
    partition=3,
    client="127.0.0.1:5000",
    outcome="committed",
    base_offset=12,
    received_ms=10.0,
    flush=FLUSH,
    answered_ms=41.0,
)


@pytest.fixture
def spans() -> Iterator[tuple[OtelTraces, Any]]:
    """Traces that are kept, and what keeps them; the clock begins at 1 s since 1970."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    yield OtelTraces(provider, lambda: 500.0, lambda: 1_500), kept
    provider.shutdown()


def times(span: Any) -> tuple[float, float]:
    """Beginning and end, in ms of the traces' clock."""
    return span.start_time / 1e6 - 1_000, span.end_time / 1e6 - 1_000


def test_the_steps_of_a_request_are_spans(spans: tuple[OtelTraces, Any]) -> None:
    """
    All in one trace, under the request.
    """
    traces, kept = spans
    traces.ended(TRACE)

    *steps, root = kept.get_finished_spans()
    assert ("produce", (10, 41)) == (root.name, times(root))
    assert {step.name: times(step) for step in steps} == {
        "buffer": (10, 20),
        "put": (21, 30),
        "commit": (31, 40),
        "answer": (40, 41),
    }
    assert {root.context.span_id} == {step.parent.span_id for step in steps}
    assert ("t", "3", 12) == (
        root.attributes["messaging.destination.name"],
        root.attributes["messaging.destination.partition.id"],
        root.attributes["messaging.kafka.offset"],
    )
    assert root.status.is_unset


def test_a_refused_request_is_an_error(spans: tuple[OtelTraces, Any]) -> None:
    """
    With the name of Kafka's error.
    """
    traces, kept = spans
    traces.ended(replace(TRACE, outcome="NOT_LEADER_OR_FOLLOWER", flush=None, base_offset=-1))

    step, root = kept.get_finished_spans()
    assert ("buffer", (10, 41)) == (step.name, times(step))
    assert "NOT_LEADER_OR_FOLLOWER" == root.status.description


class _Collector(BaseHTTPRequestHandler):
    """OTLP over HTTP, as far as spans."""

    names: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        body = self.rfile.read(int(self.headers["Content-Length"]))
        sent = ExportTraceServiceRequest.FromString(body)
        for resource in sent.resource_spans:
            for scope in resource.scope_spans:
                self.names.update(span.name for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_an_agent_sends_its_traces(tmp_path: Path) -> None:
    """
    By OTLP, to where OpenTelemetry's variables say; what is left at its end, too.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    arguments = ("--config", "driftlog.traces.enable=true")
    wanted = {"produce", "buffer", "put", "commit", "answer"}
    with DriftlogProcess(tmp_path / "data", arguments, environment) as agent:
        topic = make_topic(agent)
        producer = Producer({"bootstrap.servers": agent.bootstrap})

        deadline = time.monotonic() + 60
        while not wanted <= _Collector.names and time.monotonic() < deadline:
            producer.produce(topic, b"value")
            producer.flush(30)
        log = agent.log
    server.shutdown()

    assert wanted <= _Collector.names
    assert "Traceback" not in log
