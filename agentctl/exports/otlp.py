"""Sends a run's spans and metrics to an OTLP receiver over HTTP; the libraries come with the extra
`[otel]`.

Headers for the receiver, such as its key, come only from OTEL_EXPORTER_OTLP_HEADERS, so that they appear
in no process list and in no shell history.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from agentctl.exports.telemetry import PREFIX, SCOPE, TraceSpan
from agentctl.views.run import RunView
from daemon.errors import DaemonError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

BATCH = 256
"""Spans per request."""
CONNECT_SECONDS = 5.0
SECONDS = 20.0
"""Timeout for each batch, in seconds."""
BOUNDARIES = {
    "gen_ai.client.token.usage": tuple(float(4**power) for power in range(14)),
    "gen_ai.client.operation.duration": tuple(0.01 * 2**power for power in range(14)),
}
"""Histogram boundaries from the GenAI conventions, in tokens and in seconds."""


@dataclass(frozen=True, slots=True)
class SentSpans:
    """How many spans were sent, and how many of these were questions to models."""

    spans: int
    questions: int


def send_telemetry(address: str, found: Iterable[TraceSpan], view: RunView, *, version: str) -> SentSpans:
    """Send spans, and metrics derived from them, to an OTLP receiver such as http://127.0.0.1:4318.

    Raises:
        DaemonError: the libraries are not installed, the address is invalid, or the receiver refused
            something.
    """
    _require_opentelemetry()
    base = _check_address(address)
    _require_receiver(base)
    with _collect_log_messages() as said:
        resource = _make_resource(version)
        metrics = _Metrics(resource)
        sent = _send_spans(f"{base}/v1/traces", found, resource, metrics=metrics, said=said)
        metrics.add_run_gauges(view)
        metrics.send_metrics(f"{base}/v1/metrics", said)
    return sent


def _require_opentelemetry() -> None:
    """Check that the libraries are installed.

    Raises:
        DaemonError: they are not.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        hint = "pip install 'opentelemetry-sdk' 'opentelemetry-exporter-otlp-proto-http', or the extra [otel]"
        raise DaemonError("OpenTelemetry is not installed", code="no_otel", hint=hint) from error


def _check_address(address: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.username or parts.password:
        hint = "keys go into OTEL_EXPORTER_OTLP_HEADERS"
        text = "no address of an OTLP receiver, such as http://127.0.0.1:4318"
        raise DaemonError(text, code="bad_address", hint=hint)
    return address.rstrip("/").removesuffix("/v1/traces")


def _require_receiver(base: str) -> None:
    """Check that somebody listens there, because the libraries would retry for a long time without
    saying why.

    Raises:
        DaemonError: nobody listens.
    """
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(base)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        text = f"nobody takes OTLP at {host}:{port}: {error.strerror or error}"
        raise DaemonError(text, code="export_failed") from error


def _make_resource(version: str) -> Resource:
    from opentelemetry.sdk.resources import Resource

    return Resource({"service.name": SCOPE, "service.version": version})


@contextmanager
def _collect_log_messages() -> Iterator[list[str]]:
    """Collect what the libraries would log, so that the caller can report it in one error."""
    said: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, handler = logging.getLogger("opentelemetry"), Collect()
    before = logger.propagate
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def _export_error(address: str, said: Sequence[str]) -> DaemonError:
    from agent_core.roles.llm.quoting import single_line

    why = (
        f": {single_line(said[0], 200)}" if said else ""
    )  # the first message says what went wrong; the others only say that it goes on
    return DaemonError(f"{address} did not take everything{why}", code="export_failed")


def _send_spans(
    address: str, found: Iterable[TraceSpan], resource: Resource, *, metrics: _Metrics, said: list[str]
) -> SentSpans:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    exporter = OTLPSpanExporter(endpoint=address, timeout=SECONDS)
    left, count, questions = iter(found), 0, 0
    try:
        while batch := list(islice(left, BATCH)):
            if (
                exporter.export([_to_readable_span(one, resource) for one in batch])
                is not SpanExportResult.SUCCESS
            ):
                raise _export_error(address, said)
            for one in batch:
                metrics.add_span(one)
            count += len(batch)
            questions += sum(one.client for one in batch)
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
    return SentSpans(count, questions)


def _to_readable_span(one: TraceSpan, resource: Resource) -> Any:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(id_: int) -> SpanContext:
        return SpanContext(one.trace, id_, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    return ReadableSpan(
        name=one.name,
        context=context(one.id),
        parent=None if one.parent is None else context(one.parent),
        resource=resource,
        attributes=one.attributes,
        kind=SpanKind.CLIENT if one.client else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, one.error) if one.error else Status(StatusCode.UNSET),
        start_time=one.begin_ns,
        end_time=one.end_ns,
        instrumentation_scope=InstrumentationScope(SCOPE),
    )


class _Metrics:
    """The metrics of one export: those of the GenAI conventions for questions, and gauges of the run."""

    def __init__(self, resource: Resource) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

        views = [
            View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(boundaries))
            for name, boundaries in BOUNDARIES.items()
        ]
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], resource, views=views, shutdown_on_exit=False)
        self._meter = self._provider.get_meter(SCOPE)
        self._tokens = self._meter.create_histogram("gen_ai.client.token.usage", "{token}")
        self._took = self._meter.create_histogram("gen_ai.client.operation.duration", "s")
        self._cost = self._meter.create_counter(f"{PREFIX}.cost", "{USD}", "what questions to models cost")
        self._verdicts = self._meter.create_counter(f"{PREFIX}.verdicts", "{kernel}", "kernels judged")

    def add_span(self, one: TraceSpan) -> None:
        """Count one span."""
        told = one.attributes
        verdict = told.get(f"{PREFIX}.verdict")
        if verdict is not None and told.get(f"{PREFIX}.role") == "evaluator":
            self._verdicts.add(1, {f"{PREFIX}.verdict": str(verdict)})
        if not one.client:
            return
        names = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "error.type")
        labels = {name: str(told[name]) for name in names if name in told}
        self._took.record((one.end_ns - one.begin_ns) / 1e9, labels)
        cost = told.get(f"{PREFIX}.cost_usd")
        if isinstance(cost, float):
            self._cost.add(cost, labels)
        for kind in ("input", "output"):
            tokens = told.get(f"gen_ai.usage.{kind}_tokens")
            if isinstance(tokens, int):
                self._tokens.record(tokens, {**labels, "gen_ai.token.type": kind})

    def add_run_gauges(self, view: RunView) -> None:
        """Add gauges of the run's state."""
        labels = {
            f"{PREFIX}.run": view.id,
            f"{PREFIX}.problem": view.problem,
            f"{PREFIX}.target": view.target,
        }
        figures = {
            "latency.initial": ("ms", view.initial_ms),
            "latency.best": ("ms", view.best_ms),
            "speedup": ("1", view.speedup),
            "roofline": ("%", view.percent_of_peak),
        }
        for name, (unit, value) in figures.items():
            if value is not None:
                predicted = {f"{PREFIX}.predicted": bool(view.predicted)}
                self._meter.create_gauge(f"{PREFIX}.{name}", unit).set(value, {**labels, **predicted})

    def send_metrics(self, address: str, said: Sequence[str]) -> None:
        """Send the metrics.

        Raises:
            DaemonError: the receiver did not accept them.
        """
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult

        found = self._reader.get_metrics_data()
        exporter = OTLPMetricExporter(endpoint=address, timeout=SECONDS)
        try:
            if found is not None and exporter.export(found) is not MetricExportResult.SUCCESS:
                raise _export_error(address, said)
        finally:
            exporter.shutdown()
            self._provider.shutdown()
