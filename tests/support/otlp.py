"""A receiver of OpenTelemetry's protocol over HTTP, on this machine: it keeps what it is sent, decoded."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Received:
    """Requests as they came: decoded messages by kind, headers, and the bytes of all bodies."""

    address: str
    status: int = 200
    traces: list[Any] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: bytes = b""

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def points(self) -> dict[str, list[Any]]:
        """Data points of metrics by name."""
        found: dict[str, list[Any]] = {}
        for request in self.metrics:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        kind = metric.WhichOneof("data")
                        found.setdefault(metric.name, []).extend(getattr(metric, kind).data_points)
        return found


def value(any_value: Any) -> Any:
    """Return an attribute's value as Python has it."""
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(one) for one in any_value.array_value.values]
    return getattr(any_value, kind)


def attributes(thing: Any) -> dict[str, Any]:
    return {one.key: value(one.value) for one in thing.attributes}


@contextmanager
def receiver(status: int = 200) -> Iterator[Received]:
    """Listen on a port of the loopback until the block ends; answer everything with `status`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            data = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            found.headers.append({name.lower(): text for name, text in self.headers.items()})
            found.bodies += data
            kinds = {
                "/v1/traces": (ExportTraceServiceRequest, found.traces),
                "/v1/metrics": (ExportMetricsServiceRequest, found.metrics),
            }
            known = kinds.get(self.path)
            if known is not None and found.status == 200:
                known[1].append(known[0].FromString(data))
            self.send_response(found.status if known else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Received(f"http://127.0.0.1:{server.server_address[1]}", status)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
