"""Writes ``grafana.json``, the dashboard: ``python contrib/grafana/dashboard.py``.

Needs ``pip install grafana-foundation-sdk``. Import the file in Grafana, and choose the Prometheus.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, stat, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

FILE = Path(__file__).with_name("grafana.json")

SOURCE = DataSourceRef(type_val="prometheus", uid="$source")

#: What all expressions choose, and those about queues.
APP = 'job=~"$job"'
QUEUE = f'{APP}, queue=~"$queue"'


class Panel(NamedTuple):
    """A panel: expressions by what their lines are called, and from which value on it is red."""

    title: str
    unit: str
    expressions: dict[str, str]
    red: float | None = None


def rate(name: str, by: str) -> str:
    """Return how much a counter grows in a second; a new epoch is no growth."""
    return f"sum by ({by}) (rate(delayq_{name}_total{{{QUEUE}}}[$__rate_interval]))"


def quantile(share: float, name: str) -> str:
    """Return a quantile of a histogram of all tasks of the queues."""
    buckets = f"rate(delayq_{name}_seconds_bucket{{{QUEUE}}}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by (le) ({buckets}))"


#: What is seen first, as numbers.
STATS = (
    Panel("Up", "short", {"up": f"min(delayq_up{{{APP}}})"}),
    Panel("Scheduled", "short", {"": f'sum(delayq_entries{{{QUEUE}, state="scheduled"}})'}),
    Panel("Ready", "short", {"": f'sum(delayq_entries{{{QUEUE}, state="ready"}})'}),
    Panel("Overdue", "short", {"": f"sum(delayq_overdue_entries{{{QUEUE}}})"}, 1000),
    Panel("Oldest due", "s", {"": f"max(delayq_oldest_due_age_seconds{{{QUEUE}}})"}, 300),
    Panel("Dead letters", "short", {"": f'sum(delayq_entries{{{QUEUE}, state="dead"}})'}),
    Panel(
        "Last dispatch",
        "s",
        {"": f"time() - max(delayq_last_dispatch_timestamp_seconds{{{APP}}})"},
        30,
    ),
    Panel(
        "Late periodic", "short", {"": f'sum(delayq_periodic_entries{{{APP}, status="late"}})'}, 1
    ),
)

#: Rows of graphs.
ROWS = {
    "Is it in time?": (
        Panel(
            "Lateness of starts",
            "s",
            {f"p{round(share * 100)}": quantile(share, "lateness") for share in (0.5, 0.99)},
        ),
        Panel(
            "From due to ready",
            "s",
            {f"p{round(share * 100)}": quantile(share, "promotion_delay") for share in (0.5, 0.99)},
        ),
        Panel(
            "Oldest due, by queue",
            "s",
            {"{{queue}}": f"max by (queue) (delayq_oldest_due_age_seconds{{{QUEUE}}})"},
        ),
    ),
    "What waits?": (
        Panel(
            "Entries by state",
            "short",
            {"{{state}}": f"sum by (state) (delayq_entries{{{QUEUE}}})"},
        ),
        Panel(
            "Scheduled, by task",
            "short",
            {"{{task}}": f"topk(10, sum by (task) (delayq_scheduled_entries{{{QUEUE}}}))"},
        ),
        Panel(
            "Ready, by task",
            "short",
            {"{{task}}": f"topk(10, sum by (task) (delayq_ready_entries{{{QUEUE}}}))"},
        ),
    ),
    "What do limits hold?": (
        Panel(
            "Held, by limit",
            "short",
            {"{{limit}}": f"topk(10, max by (limit) (delayq_limit_held{{{APP}}}))"},
        ),
        Panel(
            "Used, and allowed for each key",
            "short",
            {
                f"{{{{limit}}}} {name}": f"topk(10, max by (limit) (delayq_limit_{name}{{{APP}}}))"
                for name in ("used", "allowed")
            },
        ),
        Panel(
            "Held, by what they wait for",
            "short",
            {"{{waits_for}}": f"sum by (waits_for) (delayq_held_entries{{{QUEUE}}})"},
        ),
    ),
    "What is done?": (
        Panel(
            "Messages in a second",
            "ops",
            {name: rate(name, "") for name in ("accepted", "promoted", "acked")},
        ),
        Panel(
            "Trouble in a second",
            "ops",
            {name: rate(name, "") for name in ("retried", "redelivered", "cancelled")},
        ),
        Panel("Dead letters in a second", "ops", {"{{reason}}": rate("dead_lettered", "reason")}),
        Panel("Duration of runs", "s", {"p50": quantile(0.5, "run"), "p99": quantile(0.99, "run")}),
        Panel(
            "Processes with leases",
            "short",
            {"{{queue}}": f"max by (queue) (delayq_leasing_processes{{{QUEUE}}})"},
        ),
        Panel(
            "Periodic entries",
            "short",
            {"{{status}}": f"sum by (status) (delayq_periodic_entries{{{APP}}})"},
        ),
    ),
    "Redis and the exporter": (
        Panel(
            "Memory",
            "bytes",
            {
                "used": f"max(delayq_redis_memory_used_bytes{{{APP}}})",
                "limit": f"max(delayq_redis_memory_max_bytes{{{APP}}}) > 0",
                "schedules": f"sum(delayq_schedule_memory_bytes{{{QUEUE}}})",
            },
        ),
        Panel("Clock skew", "s", {"{{instance}}": f"delayq_clock_skew_seconds{{{APP}}}"}),
        Panel("Scrapes", "s", {"{{instance}}": f"delayq_scrape_duration_seconds{{{APP}}}"}),
    ),
}


def panels() -> list[Panel]:
    """Return all panels."""
    return [*STATS, *(panel for row in ROWS.values() for panel in row)]


def dashboard() -> str:
    """Return the dashboard as JSON."""
    made = (
        Dashboard("celery_delayq")
        .uid("celery-delayq")
        .tags(["celery", "celery_delayq"])
        .description(
            "Delayed tasks: are they in time, what waits, what is done. See docs/metrics.md."
        )
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(_variable("job", "label_values(delayq_up, job)"))
        .with_variable(_variable("queue", f"label_values(delayq_entries{{{APP}}}, queue)"))
    )
    for panel in STATS:
        made.with_panel(
            _filled(stat.Panel().graph_mode(BigValueGraphMode.AREA), panel).span(3).height(4)
        )
    for title, row in ROWS.items():
        made.with_row(Row(title))
        for panel in row:
            legend = (
                common.VizLegendOptions()
                .display_mode(LegendDisplayMode.LIST)
                .placement(LegendPlacement.BOTTOM)
                .show_legend(True)
            )
            graph = timeseries.Panel().legend(legend).fill_opacity(10).axis_soft_min(0)
            made.with_panel(_filled(graph, panel).span(8).height(8))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def _variable(name: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _filled(made: timeseries.Panel | stat.Panel, panel: Panel) -> timeseries.Panel | stat.Panel:
    made.title(panel.title).unit(panel.unit).datasource(SOURCE)
    for place, (legend, expression) in enumerate(panel.expressions.items()):
        query = Dataquery().expr(expression).ref_id(chr(ord("A") + place))
        made.with_target(query.legend_format(legend or "__auto"))
    steps = [Threshold(value=None, color="green")]
    if panel.red is not None:
        steps.append(Threshold(value=panel.red, color="red"))
    return made.thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))


if __name__ == "__main__":
    FILE.write_text(dashboard(), "utf-8")
