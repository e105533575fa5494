"""Counters for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from racer_local.server.event_stream import Figures
from racer_local.server.host import ModelHost

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_RATES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class _Now(Collector):
    """What is true at the moment of asking."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host

    def collect(self) -> Iterator[GaugeMetricFamily]:
        calls = self._host.calls
        # Loading at the start is a turn that nobody asked for.
        is_serving = calls.active is not None and self._host.state != "loading"
        yield GaugeMetricFamily("racer_queue_length", "Requests that wait.", len(calls))
        yield GaugeMetricFamily("racer_running", "Requests being served.", int(is_serving))
        is_loaded = self._host.state == "ready"
        yield GaugeMetricFamily("racer_model_loaded", "Whether it is in memory.", int(is_loaded))


class Metrics:
    """Everything that ``/metrics`` tells. Nothing in it depends on what was asked."""

    def __init__(self, host: ModelHost) -> None:
        """Start from zero."""
        self._registry = registry = CollectorRegistry()
        registry.register(_Now(host))
        self._requests = Counter(
            "racer_requests", "Requests.", ("endpoint", "status"), registry=registry
        )
        self._tokens = Counter("racer_tokens", "Tokens.", ("kind",), registry=registry)
        self._steps = Counter("racer_decode_steps", "Decode steps.", registry=registry)
        self._drafted = Counter(
            "racer_draft_tokens", "Tokens drafted.", ("source",), registry=registry
        )
        self._accepted = Counter(
            "racer_draft_accepted_tokens", "Drafts accepted.", ("source",), registry=registry
        )
        self._speedup = Gauge(
            "racer_speedup_estimate",
            "Estimated speed of the latest answer relative to plain decoding.",
            registry=registry,
        )
        self._cancelled = Counter(
            "racer_cancelled", "Requests whose client went away.", registry=registry
        )
        self._waited = Histogram(
            "racer_queue_seconds", "Waiting for a turn.", buckets=_SECONDS, registry=registry
        )
        self._prefill = Histogram(
            "racer_prefill_seconds",
            "From a turn's begin to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._first = Histogram(
            "racer_first_token_seconds",
            "From a request to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._whole = Histogram(
            "racer_request_seconds", "Requests, whole.", buckets=_SECONDS, registry=registry
        )
        self._rate = Histogram(
            "racer_tokens_per_second", "Decoding speed.", buckets=_RATES, registry=registry
        )

    def answered(self, endpoint: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(endpoint, str(status)).inc()

    def cancelled(self) -> None:
        """Count a client that went away."""
        self._cancelled.inc()

    def waited(self, seconds: float) -> None:
        """Note how long a request waited for its turn."""
        self._waited.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """Note when the first token came."""
        self._first.observe(seconds)

    def finished(self, seconds: float) -> None:
        """Note how long a request took."""
        self._whole.observe(seconds)

    def generated(self, figures: Figures) -> None:
        """Count an answer."""
        self._tokens.labels("prompt").inc(figures.n_prompt - figures.n_cached)
        self._tokens.labels("cached").inc(figures.n_cached)
        self._tokens.labels("generated").inc(figures.n_answer)
        self._steps.inc(figures.n_steps)
        for source, (drafted, accepted) in figures.by_source.items():
            self._drafted.labels(source).inc(drafted)
            self._accepted.labels(source).inc(accepted)
        self._prefill.observe(figures.prefill_s)
        if figures.n_answer > 1 and figures.decode_s > 0:
            self._rate.observe((figures.n_answer - 1) / figures.decode_s)
        if figures.speedup is not None:
            self._speedup.set(figures.speedup)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)
