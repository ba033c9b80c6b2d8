"""Examples in ``contrib/``: they are valid, and name what exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from celery_delayq.cli import delayq
from celery_delayq.metrics.catalogue import METRICS
from tests.support.skips import left_out

ROOT = Path(__file__).parents[3]
CONTRIB = ROOT / "contrib"
UNITS = sorted((CONTRIB / "systemd").iterdir())
#: The oldest version of Kubernetes whose schemas are there, and the newest one.
KUBERNETES = ("1.28", kubernetes_validate.latest_version())
#: A file whose age is looked at, and the seconds.
PROBE = re.compile(r"test \$+\(\(\$+\(date \+%+s\) - \$+\(stat -c %+Y \S+\)\)\) (-lt|-ge) 60")


def documents(path: Path) -> Iterator[Any]:
    yield from yaml.safe_load_all(path.read_text("utf-8"))


def texts(value: Any) -> Iterator[str]:
    """Yield all texts of a document; lists of texts as commands, too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list):
        if all(isinstance(each, str) for each in value):
            yield " ".join(value)
        for each in value:
            yield from texts(each)


FILES = [*(path for path in CONTRIB.rglob("*.y*ml") if path.parent.name != "prometheus"), *UNITS]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_of_this_package_exist_with_their_options(path: Path) -> None:
    text = path.read_text("utf-8")
    lines = text.splitlines() if path in UNITS else [*texts([*documents(path)])]
    for line in lines:
        if found := re.search(r"celery -A shop delayq ([\w-]+)(.*)", line):
            command = delayq.get_command(click.Context(delayq), found[1])
            assert command is not None, line
            command.make_context(found[1], found[2].split(), resilient_parsing=False)
    if "stat -c" in text:
        assert PROBE.search(text)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        raise left_out("units are checked by systemd-analyze: apt install systemd")
    for unit in UNITS:
        shutil.copy(unit, tmp_path / unit.name)
    name = path.name.replace("@.", "@1.")
    shutil.copy(path, tmp_path / name)

    # What only the machine has, such as paths of the app, is no fault of the unit.
    ran = subprocess.run(
        [program, "verify", "--man=no", str(tmp_path / name)],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:/lib/systemd/system"},
        capture_output=True,
        text=True,
    )

    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    manifests = [*documents(CONTRIB / "kubernetes" / "shop.yaml")]

    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)

    kinds = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert kinds == [
        *(("Deployment", f"shop-{role}") for role in ("worker", "dispatcher", "web", "exporter")),
        ("PodDisruptionBudget", "shop-worker"),
    ]
    [worker] = manifests[0]["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe"):
        assert PROBE.search(worker[probe]["exec"]["command"][-1])


def test_compose_has_each_role_with_its_own_secret() -> None:
    [compose] = documents(CONTRIB / "compose" / "compose.yaml")

    services = compose["services"]
    secrets = {name: each["env_file"] for name, each in services.items() if "env_file" in each}
    assert secrets == {name: f"{name}.env" for name in ("worker", "dispatcher", "exporter")}
    assert "noeviction" in services["redis"]["command"]
    assert "--appendonly yes" in services["redis"]["command"]


def test_keda_scales_the_workers_by_metrics_that_exist() -> None:
    [scaled] = documents(CONTRIB / "keda" / "shop.yaml")

    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"] == {"name": "shop-worker"}
    [trigger] = scaled["spec"]["triggers"]
    named = set(re.findall(r"\bdelayq_\w+", trigger["metadata"]["query"]))
    assert named
    assert named <= {metric.name for metric in METRICS}
