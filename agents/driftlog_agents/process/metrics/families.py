"""Makes metrics: each has a name, a help text and its values.

`tools/metrics_page` reads the calls of these functions in the modules of this folder: a name and a
text are literals there.

Shell.
"""

from collections.abc import Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from driftlog_agents.foundation.histogram import Histogram


def counter(name: str, text: str, value: float) -> Metric:
    """A number that only grows."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    """A number."""
    return GaugeMetricFamily(name, text, value=value)


def histogram(name: str, text: str, durations: Histogram) -> Metric:
    """Durations by length."""
    return HistogramMetricFamily(
        name, text, buckets=list(durations.buckets()), sum_value=durations.sum_s
    )


def histograms(name: str, text: str, label: str, durations: Mapping[str, Histogram]) -> Metric:
    """Durations by length, for each value of *label*."""
    family = HistogramMetricFamily(name, text, labels=[label])
    for value, each in durations.items():
        family.add_metric([value], buckets=list(each.buckets()), sum_value=each.sum_s)
    return family
