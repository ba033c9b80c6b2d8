"""Write the table of metrics into ``docs/metrics.md``: ``python -m tests.support.metrics_page``."""

from __future__ import annotations

import re
from pathlib import Path

from celery_delayq.metrics.catalogue import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

_TABLE = re.compile(r"(<!-- metrics -->\n).*?(<!-- end of metrics -->)", re.DOTALL)


def with_table(text: str) -> str:
    """Return the page with the metrics of the code."""
    lines = ["| metric | kind | labels | |", "| --- | --- | --- | --- |"]
    for each in METRICS:
        labels = ", ".join(f"`{name}`" for name in each.labels)
        where = " RabbitMQ too." if each.on_rabbitmq else ""
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help}{where} |")
    table = "\n".join(lines)
    return _TABLE.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
