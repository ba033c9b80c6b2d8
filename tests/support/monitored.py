"""A real app that a real Prometheus scrapes, with Alertmanager.

``python -m tests.support.monitored`` draws ``docs/images/dashboard.png`` of such an app.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded.ports import free_port
from celery_delayq.testing import FAST_START, ManagedProcess, wait_until
from celery_delayq.testing.servers import new_server
from tests.support import TIMEOUT
from tests.support.skips import left_out

ROOT = Path(__file__).parents[2]
RULES = ROOT / "contrib" / "prometheus" / "alerts.yml"

#: Seconds between two scrapes, and between two evaluations of the rules.
INTERVAL = 1

#: Seconds for which a condition must hold, instead of minutes.
FOR = 2

#: Replacements of thresholds that take minutes to reach.
SHORTER = {
    "delayq_next_due_timestamp_seconds > 30": "delayq_next_due_timestamp_seconds > 2",
    "delayq_oldest_due_age_seconds > 300": "delayq_oldest_due_age_seconds > 3",
    # Dispatchers report every 5 s.
    "delayq_last_dispatch_timestamp_seconds <= 30": "delayq_last_dispatch_timestamp_seconds <= 8",
    "[15m]": "[15s]",
    "[10m]": "[10s]",
}

SHOP = """\
import random, time
from celery import Celery
from celery_delayq import DelayQ

app = Celery("shop", broker={url!r}, backend=None)
app.conf.broker_transport_options = {{"delayq": {{"history": 100_000, "lease": 2}}}}
app.conf.task_ignore_result = True
DelayQ(app, at_least_once=True)


@app.task(name="shop.remind")
def remind(seconds=0.0):
    time.sleep(random.random() * seconds)


@app.task(name="shop.report")
def report():
    time.sleep(0.05)


@app.task(name="shop.pay")
def pay():
    raise ValueError("no money")
"""


def rules() -> dict[str, Any]:
    """Return the rules with shorter times."""
    text = RULES.read_text("utf-8")
    for long, short in SHORTER.items():
        assert long in text, long
        text = text.replace(long, short)
    found: dict[str, Any] = yaml.safe_load(text)
    for rule in found["groups"][0]["rules"]:
        rule["for"] = f"{FOR}s"
    return found


def alerts() -> dict[str, str]:
    """Return the expression of each alert by its name."""
    return {rule["alert"]: rule["expr"] for rule in rules()["groups"][0]["rules"]}


def need_prometheus() -> None:
    """Skip a test without Prometheus or Alertmanager."""
    for program in ("prometheus", "promtool", "prometheus-alertmanager"):
        if shutil.which(program) is None:
            raise left_out(f"{program} is missing: apt install prometheus prometheus-alertmanager")


class Monitored:
    """The app, its processes, and the programs that monitor them.

    Parameters
    ----------
    folder
        For files of all programs.
    skewed
        The environment of a second exporter, if any.
    """

    def __init__(self, folder: Path, skewed: dict[str, str] | None = None) -> None:
        self._stack, self._folder, self._skewed = ExitStack(), folder, skewed
        #: Names of alerts, in the order in which Alertmanager sent them.
        self.fired: list[str] = []
        self.resolved: list[str] = []

    def __enter__(self) -> Monitored:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        enter = self._stack.enter_context
        self.redis = enter(new_server())
        self.client = enter(self.redis.client())
        url = self.redis.url_for("delayq+redis")
        (self._folder / "shop.py").write_text(SHOP.format(url=url))
        self.app = Celery("shop", broker=url, set_as_current=False)
        self.app.conf.broker_transport_options = {"delayq": {"history": 100_000, "lease": 2}}
        self.delayq = DelayQ(self.app)
        self._stack.callback(self.app.close)
        self._stack.callback(self.delayq.close)
        exporters = [self._exporter({})]
        exporters += [self._exporter(self._skewed)] if self._skewed is not None else []
        hook = enter(_Hook(self.fired, self.resolved))
        alertmanager, self._port = free_port(), free_port()
        self._write(
            "alertmanager.yml",
            route={
                **{"receiver": "test", "group_by": ["..."], "group_wait": "100ms"},
                **{"group_interval": "1s", "repeat_interval": "1h"},
            },
            receivers=[
                {"name": "test", "webhook_configs": [{"url": hook.url, "send_resolved": True}]}
            ],
        )
        self._write("alerts.yml", **rules())
        targets = [f"127.0.0.1:{port}" for port in exporters]
        self._write(
            "prometheus.yml",
            **{
                "global": {
                    "scrape_interval": f"{INTERVAL}s",
                    "evaluation_interval": f"{INTERVAL}s",
                },
                "rule_files": ["alerts.yml"],
                "scrape_configs": [
                    {"job_name": "delayq", "static_configs": [{"targets": targets}]}
                ],
                "alerting": {
                    "alertmanagers": [
                        {"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}
                    ]
                },
            },
        )
        self._run(
            *("prometheus-alertmanager", "--config.file=alertmanager.yml"),
            *("--storage.path=alertmanager", "--cluster.listen-address="),
            f"--web.listen-address=127.0.0.1:{alertmanager}",
        )
        self._run(
            *("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"),
            f"--web.listen-address=127.0.0.1:{self._port}",
        )
        wait_until(self._is_ready, TIMEOUT, "Prometheus has values")

    def worker(self, queue: str) -> ManagedProcess:
        """Start a worker of a queue, which also dispatches all queues."""
        process = self._run(
            *(sys.executable, "-m", "celery", "-A", "shop", "worker", "-Q", queue, "-c", "4"),
            *("--pool", "threads", "-n", f"{queue}@test", "-l", "INFO", *FAST_START),
        )
        process.wait_log("ready")
        return process

    @property
    def url(self) -> str:
        """The address of Prometheus."""
        return f"http://127.0.0.1:{self._port}"

    def ask(self, path: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the answer of Prometheus' HTTP API."""
        with urlopen(
            f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=TIMEOUT
        ) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found

    def values(self, expression: str) -> list[float]:
        """Return the values of an expression now."""
        return [float(each["value"][1]) for each in self.ask("query", query=expression)]

    def since(self, expression: str, begin: float, lasting: float = 0.0) -> float | None:
        """Return since when, after *begin*, an expression has had a value for *lasting* seconds."""
        step = INTERVAL / 4
        found = self.ask("query_range", query=expression, start=begin, end=time.time(), step=step)
        times = sorted({float(time) for each in found for time, _ in each["values"]})
        first = last = None
        for now in times:
            if first is None or last is None or now - last > 1.5 * step:
                first = now
            if now - first >= lasting:
                return first
            last = now
        return None

    def load(self) -> Iterator[None]:
        """Send tasks repeatedly during the ``with`` block."""
        while True:
            for countdown in (0, 0.3, 2, 30):
                options = {"countdown": countdown} if countdown else {}
                self.app.send_task("shop.remind", (0.05,), **options)
            self.app.send_task("shop.report", countdown=1)
            yield

    def _is_ready(self) -> bool:
        try:
            return 1 in self.values("delayq_up")
        except OSError:
            return False

    def _exporter(self, env: dict[str, str]) -> int:
        port = free_port()
        command = (sys.executable, "-m", "celery", "-A", "shop", "delayq", "metrics")
        self._run(*command, "--port", str(port), env=env).wait_log("/metrics")
        return port

    def _run(self, *command: str, env: dict[str, str] | None = None) -> ManagedProcess:
        process = ManagedProcess(command, cwd=self._folder, env=env)
        return self._stack.enter_context(process)

    def _write(self, name: str, **content: Any) -> None:
        (self._folder / name).write_text(json.dumps(content))  # JSON is YAML


class _Hook(ThreadingHTTPServer):
    """Receives notifications of Alertmanager."""

    daemon_threads = True

    def __init__(self, fired: list[str], resolved: list[str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                notification = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in notification["alerts"]:
                    to = fired if alert["status"] == "firing" else resolved
                    to.append(alert["labels"]["alertname"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/"

    def __enter__(self) -> _Hook:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def draw(monitored: Monitored, target: Path, seconds: float) -> None:
    """Draw the dashboard of the last *seconds*."""
    folder = ROOT / "contrib" / "grafana"
    sys.path.insert(0, str(folder))
    try:
        import picture  # type: ignore[import-not-found]

        picture.draw(monitored.url, str(target), seconds, "15s")
    finally:
        sys.path.remove(str(folder))


def main() -> None:
    """Run an app for two minutes, and draw its dashboard."""
    import tempfile

    seconds = float(os.environ.get("SECONDS_OF_LOAD", 120))
    with tempfile.TemporaryDirectory() as name, Monitored(Path(name)) as monitored:
        monitored.worker("celery")
        monitored.delayq.periodic.add("report", 5, "shop.report")
        load, until = monitored.load(), time.monotonic() + seconds
        for _ in range(50):  # no worker consumes their queue for half of the time
            monitored.app.send_task("shop.report", queue="reports", countdown=seconds / 5)
        has_consumer = False
        while (left := until - time.monotonic()) > 0:
            next(load)
            if int(left) % 30 == 0:
                monitored.app.send_task("shop.pay")
            if left < seconds / 2 and not has_consumer:
                monitored.worker("reports")
                has_consumer = True
            time.sleep(0.05)
        draw(monitored, ROOT / "docs" / "images" / "dashboard.png", seconds)


if __name__ == "__main__":
    main()
