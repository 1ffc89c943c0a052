"""A histogram as a PNG, through matplotlib, which no extra of driftlog installs.

Shell.
"""

import importlib.util

from driftlog_spark_reader.common.errors import JobError
from driftlog_spark_reader.jobs.chart import Histogram, moment


def check_matplotlib() -> None:
    """Before a long job.

    Raises:
        JobError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise JobError("a PNG needs matplotlib, which is not installed: pip install matplotlib")


def write_png(histogram: Histogram, title: str, path: str) -> None:
    """Bars by time, those of partitions on top of each other.

    Raises:
        JobError: matplotlib is not installed, or the file cannot be written.
    """
    check_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415  # optional

    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.add_subplot()
    places = [*range(histogram.buckets)]
    below = [0] * histogram.buckets
    for partition, row in sorted(histogram.counts.items()):
        axes.bar(places, row, width=1.0, bottom=below, label=f"partition {partition}")
        below = [low + count for low, count in zip(below, row, strict=True)]
    ticks = places[:: max(1, histogram.buckets // 6)]
    axes.set_xticks(
        ticks, [moment(histogram.start_ms + tick * histogram.bucket_ms) for tick in ticks]
    )
    axes.set_ylabel("records")
    axes.set_ylim(0, 1.05 * max(below, default=1))
    axes.set_title(f"{title} (UTC)")
    if 1 < len(histogram.counts) <= 20:
        axes.legend()
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise JobError(f"cannot write {path}: {error}") from error
