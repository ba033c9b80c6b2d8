"""The alerts and the dashboard: they are what their programs say, and name what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from celery_delayq.metrics.catalogue import METRICS
from tests.support.skips import left_out

ROOT = Path(__file__).parents[3]
PROMETHEUS, GRAFANA = ROOT / "contrib" / "prometheus", ROOT / "contrib" / "grafana"
RULES = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
PAGE = (ROOT / "docs" / "alerts.md").read_text("utf-8")

NAMES = {each.name for each in METRICS if each.kind != "histogram"}
NAMES |= {f"{each.name}_bucket" for each in METRICS if each.kind == "histogram"}


def expressions(data: Any) -> list[str]:
    """Return all expressions in rules or in a dashboard."""
    if isinstance(data, list):
        return [found for each in data for found in expressions(each)]
    if not isinstance(data, dict):
        return []
    own = [data["expr"]] if isinstance(data.get("expr"), str) else []
    return own + expressions([*data.values()])


BOARD = expressions(json.loads((GRAFANA / "grafana.json").read_text("utf-8")))


@pytest.mark.parametrize("expression", [*expressions(RULES), *BOARD])
def test_expressions_name_metrics_that_there_are(expression: str) -> None:
    named = {*re.findall(r"\bdelayq_\w+", expression)}

    assert named
    assert named <= NAMES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_has_a_runbook(rule: dict[str, Any]) -> None:
    name = rule["alert"]

    assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{name.lower()}"
    assert f"\n## {name}\n" in PAGE
    row = re.search(rf"^\| \[{name}\].* \| (.*) \|$", PAGE, re.M)
    assert row is not None
    assert row[1].replace(" min", "m") == rule["for"]


def test_the_page_has_no_other_alerts() -> None:
    assert re.findall(r"^## (.*)$", PAGE, re.M) == [rule["alert"] for rule in RULES]


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_promtool_is_content(arguments: tuple[str, ...]) -> None:
    if shutil.which("promtool") is None:
        raise left_out("promtool is missing: apt install prometheus")

    ran = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboard_is_what_its_program_makes() -> None:
    """``python contrib/grafana/dashboard.py`` writes it."""
    command = [sys.executable, "-c", "import dashboard; print(dashboard.dashboard(), end='')"]
    made = subprocess.run(command, cwd=GRAFANA, capture_output=True, text=True, check=True)

    assert made.stdout == (GRAFANA / "grafana.json").read_text("utf-8")


def test_prometheus_parses_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        raise left_out("promtool is missing: apt install prometheus")
    plain = [each.replace("$__rate_interval", "1m") for each in BOARD]
    rules = [{"record": f"r{place}", "expr": each} for place, each in enumerate(plain)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))

    ran = subprocess.run(
        ["promtool", "check", "rules", "rules.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(plain) > 25
