"""Sends the way of Produce requests to a tracing system, by OpenTelemetry.

    produce   received ──────────────────────────────────────────────▶ answered      the root span
    buffer    received ──▶ cut
    put                        began ──▶ stored
    commit                                       sent ──▶ committed
    answer                                                committed ──▶ answered

OpenTelemetry's own variables say where spans go: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES.  A thread of its SDK sends them in batches, and drops what it cannot send.

Adapter.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from driftlog_agents.handlers.produce.traces import ProduceTrace

_ANSWERED: Final = ("committed", "synced")
_UNNAMED: Final = "unknown_service"


class OtelTraces:
    """See the module; `ProduceTraces`.

    Args:
        provider: OpenTelemetry's TracerProvider.
        now_ms: the clock of the traces.
        wall_ms: milliseconds since 1970.
    """

    def __init__(
        self, provider: Any, now_ms: Callable[[], float], wall_ms: Callable[[], int]
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("driftlog")
        self._now_ms = now_ms
        self._wall_ms = wall_ms

    def ended(self, trace: ProduceTrace) -> None:
        """See `ProduceTraces`."""
        with suppress(Exception):  # the log answers its producers, whatever a tracing library does
            self._send(trace)

    def _send(self, trace: ProduceTrace) -> None:
        from opentelemetry.trace import (  # noqa: PLC0415  # an extra
            SpanKind,
            Status,
            StatusCode,
            set_span_in_context,
        )

        since_1970_ms = self._wall_ms() - self._now_ms()

        def ns(at_ms: float) -> int:
            return int((since_1970_ms + at_ms) * 1_000_000)

        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.type": "send",
            "messaging.destination.name": trace.topic,
            "messaging.destination.partition.id": str(trace.partition),
            "messaging.kafka.offset": trace.base_offset,
            "client.address": trace.client,
            "driftlog.outcome": trace.outcome,
        }
        root = self._tracer.start_span(
            "produce", kind=SpanKind.SERVER, attributes=attributes, start_time=ns(trace.received_ms)
        )
        if trace.outcome not in _ANSWERED:
            root.set_status(Status(StatusCode.ERROR, trace.outcome))
        inside = set_span_in_context(root)
        for name, began_ms, ended_ms in _steps(trace):
            step = self._tracer.start_span(name, context=inside, start_time=ns(began_ms))
            step.end(ns(ended_ms))
        root.end(ns(trace.answered_ms))

    def close(self) -> None:
        """Send what is left, for a bounded time; from a thread."""
        self._provider.shutdown()


def _steps(trace: ProduceTrace) -> Iterator[tuple[str, float, float]]:
    flush = trace.flush
    if flush is None:
        yield "buffer", trace.received_ms, trace.answered_ms
        return
    yield "buffer", trace.received_ms, flush.cut_ms
    yield "put", flush.put_began_ms, flush.stored_ms
    yield "commit", flush.commit_sent_ms, flush.committed_ms
    yield "answer", flush.committed_ms, trace.answered_ms


def open_traces(
    instance: str, now_ms: Callable[[], float], wall_ms: Callable[[], int]
) -> OtelTraces:
    """Traces that are sent by OTLP over HTTP, from the agent at the address *instance*.

    Raises:
        ImportError: the extra `otel` is not installed.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  # an extra
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    named = Resource.create({"service.instance.id": instance})
    if str(named.attributes.get("service.name", _UNNAMED)).startswith(_UNNAMED):
        named = named.merge(Resource({"service.name": "driftlog"}))
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtelTraces(provider, now_ms, wall_ms)
