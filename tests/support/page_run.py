"""Run the blocks of a page in their order: ``python -m tests.support.page_run docs/control.md``.

Blocks find an app ``shop`` with tasks (``tests/apps/page_tasks.py``), a Redis with some entries
and dead letters, and names such as ``id``. A block whose first line is the name of a file is
written there. Workers and servers that a console block starts run until the end of the page.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib import import_module, reload
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from celery import chain, group
from celery.schedules import crontab

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.ports import free_port
from celery_delayq.testing import ManagedProcess, wait_until
from tests.integration.spark.driver import configured, despite_late_python
from tests.support import TIMEOUT
from tests.support.dead_letters import details, message, stored
from tests.support.page_blocks import ROOT, Block, blocks_of
from tests.support.runs import finished

SHOP = ROOT / "tests" / "apps" / "page_tasks.py"
#: The rewrite functions that commands of pages name.
FIXES = "def add_currency(call):\n    return None\n"
#: Of a suite without one.
CONFTEST = 'pytest_plugins = ["celery_delayq.testing.fixtures"]\n'
#: Plugins of pytest that those who read the page may not have.
OTHER_PLUGINS = ("celery", "cacheprovider", "hypothesispytest", "django", "asyncio", "valkey")
#: Pages that begin with an empty folder and start a Redis themselves.
FROM_NOTHING = {"tutorial"}
#: What the word ID in commands means, where it is no scheduled task.
IDS = {"dead-letters": "ship-0"}
#: Pages whose blocks need a worker.
WITH_WORKER = {"asyncio"}
#: Pages whose blocks need a session of Spark.
WITH_SPARK = {"spark"}
#: What a page says that a worker prints.
_PRINTED = re.compile(r"(?:worker|it) prints `([^`]+)`")
_WORKER = re.compile(r"^celery .*\bworker\b")
#: Programs that a console line starts, and that stay.
_STAYING = re.compile(r"^celery .*\bworker\b|celery_delayq\.embedded ")
#: Programs that would stay: they are ended when they have said that they run.
_SERVING = re.compile(r"^celery .*\bdelayq (web|metrics|dispatch)\b")


class Stage:
    """A folder, a Redis and a namespace for the blocks of one page."""

    def __init__(self, page: Path, folder: Path, stack: ExitStack) -> None:
        self.page, self.folder, self._stack = page, folder, stack
        self.names: dict[str, Any] = {}
        self._rows: Any = None
        #: The logs of workers, by the lines of their blocks.
        self._logs: dict[int, Path] = {}
        from_nothing = page.stem in FROM_NOTHING
        port = free_port() if from_nothing else stack.enter_context(EmbeddedRedis()).port
        for name in ("run", "lib"):
            (folder / name).mkdir()
        (folder / "run" / "alive").touch()
        (folder / "passwords").write_text("ada:secret\n", "utf-8")
        for path in (ROOT / "contrib" / "prometheus").glob("*.yml"):
            shutil.copy(path, folder)
        #: What a page says, and what it means here.
        self._meant = {
            "localhost:6379": f"127.0.0.1:{port}",
            "--port 6379": f"--port {port}",
            "/run/shop": str(folder / "run"),
            "/var/lib/shop": str(folder / "lib"),
            "/run/secrets/delayq": str(folder / "passwords"),
            "postgresql://backup@db/shop": f"sqlite:///{folder}/lib/shop.db",
            "redis://queue:6379/0": f"redis://127.0.0.1:{port}/0",
            "s3a://shop": str(folder / "lib"),
            " ID": f" {IDS.get(page.stem, 'mail-7')}",
            "…": "...",
        }
        scripts = str(Path(sys.executable).parent)
        self._env = {
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "COLUMNS": "100",
        }
        if not from_nothing:
            self._write("shop.py", SHOP.read_text("utf-8"))
            self._write("filling.py", SHOP.read_text("utf-8"))
            self._write("fixes.py", FIXES)
        if page.stem in WITH_WORKER:
            self._command("celery -A shop worker", 0)
        if page.stem in WITH_SPARK:
            self._start_spark(f"redis://127.0.0.1:{port}/0")

    def here(self, text: str) -> str:
        """Return a text of the page as it is meant here."""
        for said, meant in self._meant.items():
            text = text.replace(said, meant)
        return text

    def run(self, block: Block) -> None:
        """Run a block.

        Raises
        ------
        Exception
            Whatever the block raises; ``CalledProcessError`` for a command that fails.
        """
        if self.page.stem not in FROM_NOTHING:
            self._fill()
        # Tasks of each block have names of their own: apps share their tasks.
        self.names["__name__"] = f"page{block.line}"
        if block.language != "python":
            for command in block.commands:
                self._command(self.here(command), block.line)
        elif block.is_suite:
            self._suite(block)
        elif block.files:
            for name, text in block.files.items():
                self._write(name, text)
                compile(self.here(text), name, "exec")
        else:
            self._python(block)

    def check_printed(self) -> None:
        """Wait for all that workers print, by the page: each text by the worker nearest to it."""
        page = self.page.read_text("utf-8")
        printed = [*_PRINTED.finditer(page)]
        assert printed or self.page.stem not in FROM_NOTHING, f"{self.page} says of no text: prints"
        for each in printed:
            line = page.count("\n", 0, each.start()) + 1
            log = self._logs[min(self._logs, key=lambda start: abs(start - line))]
            wait_until(partial(_has, log, each[1]), TIMEOUT, f"{each[1]!r} in {log}")

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        if path.parent != self.folder:
            path.parent.mkdir(exist_ok=True)
            (path.parent / "__init__.py").touch()
        path.write_text(self.here(text), "utf-8")
        if name == "shop.py":
            # Written again, within the second that the cached bytes of a module count.
            shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)

    def _python(self, block: Block) -> None:
        if (self.folder / "shop.py").exists():
            self.names.update(self._shop())
        if (self.folder / "mysite" / "settings.py").exists():
            self._set_up_django()
        name = f"{block.page.name}:{block.line}"
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(self.here(block.code), name, "exec", flags=flags)
        result = eval(code, self.names)
        if inspect.iscoroutine(result):
            asyncio.run(result)

    def _start_spark(self, url: str) -> None:
        """Start a session, make rows, and store runs that have failed."""
        variables = configured(self.folder / "spark", {}, "error")
        # PySpark starts Java with the variables of this process.
        os.environ.update({**variables, "DELAYQ_URL": url})
        from pyspark.sql import SparkSession

        session = SparkSession.builder.master("local[2]").getOrCreate()
        self._stack.callback(session.stop)
        noon = datetime.now(timezone.utc).replace(hour=12) + timedelta(days=1)
        rows = [(f"UA{number}", noon, "B1") for number in range(3)]
        schema = "flight STRING, remind_at TIMESTAMP, gate STRING"
        self.names["spark"], self._rows = session, session.createDataFrame(rows, schema)
        with import_module("filling").delayq as delayq:
            now = delayq.store.now_ms()
            times = {"due": now - 200, "started": now - 100, "state": "FAILURE"}
            runs = [finished(f"run-{n}", now, task="mail.remind", **times) for n in range(3)]
            delayq.store.history.add("me", 1, 1000, runs)

    @staticmethod
    def _set_up_django() -> None:
        os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
        import_module("django").setup()

    def _shop(self) -> Mapping[str, Any]:
        """Return the names of a new app, so that no block has the settings of another one."""
        known = sys.modules.get("shop")
        module = reload(known) if known else import_module("shop")
        return {name: value for name, value in vars(module).items() if name[0] != "_"}

    def _fill(self) -> None:
        """Store the entries and dead letters that are gone, and set the names that blocks use."""
        shop = import_module("filling")
        delayq, remind = shop.delayq, shop.remind
        for id, queue in (("mail-7", "celery"), ("mail-8", "mail")):
            # A block may have moved it, or made it ready.
            if not delayq.reschedule(id, countdown=7200):
                delayq.cancel(id)
                kwargs = {"order_id": 42}
                remind.apply_async(("ada",), kwargs, countdown=7200, task_id=id, queue=queue)
        died = delayq.store.now_ms() - 60_000
        failure = details("TimeoutError")
        dead = [(f"ship-{n}", died + n, message(f"ship-{n}", "shop.ship")) for n in range(3)]
        delayq.store.dead_letters.restore(
            "celery", [(id, at, stored(at, "it failed", body, failure)) for id, at, body in dead]
        )
        delayq.close()
        now = datetime.now(timezone.utc)
        self.names.update(
            id=IDS.get(self.page.stem, "mail-7"),
            ids=["mail-7", "mail-8"],
            entry=delayq.get("mail-7"),
            tomorrow=now + timedelta(days=1),
            rows=self._rows or [SimpleNamespace(id=7, when=now + timedelta(hours=1))],
            urls=["https://example.org"],
            chain=chain,
            group=group,
            crontab=crontab,
            datetime=datetime,
            timedelta=timedelta,
            timezone=timezone,
            fixes=import_module("fixes"),
            tenants=SimpleNamespace(current=lambda: "a", use=nullcontext),
            run=SimpleNamespace(offset="0-0"),
            fetch=shop.poll,
            a=shop.poll,
            b=shop.poll,
            input=str,
        )

    def _suite(self, block: Block) -> None:
        """Run a block with pytest, in a folder of its own."""
        folder = self.folder / f"suite{block.line}"
        folder.mkdir()
        files = block.files or {"test_block.py": block.code}
        for name, text in {"conftest.py": CONFTEST, **files}.items():
            (folder / name).write_text(self.here(text), "utf-8")
        # Results that are collected after the test would ask a backend that has ended.
        text = re.sub(r', backend=".*?"', "", SHOP.read_text("utf-8"))
        (folder / "shop.py").write_text(self.here(text), "utf-8")
        plugins = " ".join(f"-p no:{name}" for name in OTHER_PLUGINS)
        command = f"python -m pytest -q {plugins} {folder}"
        # 5: only fixtures, and no test.
        self._call(command, allowed=(0,) if "def test_" in block.code else (5,))

    def _command(self, command: str, line: int) -> None:
        if not _STAYING.search(command) and not _SERVING.search(command):
            self._call(command, self._codes_of(command))
            return
        command = re.sub(r"\s+#.*", "", command)
        log = self.folder / f"{time.monotonic_ns()}.log"
        if _WORKER.search(command):
            self._logs[line] = log
        process = ManagedProcess(
            ["bash", "-c", f"exec {command}"],
            env=self._env,
            cwd=self.folder,
            log_file=log,
            name=command,
        )
        if _STAYING.search(command):
            self._stack.enter_context(process)
            wait_until(lambda: process.log.strip(), TIMEOUT, f"output of {command}")
        else:
            with process:
                wait_until(lambda: process.log.strip(), TIMEOUT, f"output of {command}")
                assert process.running, process.log

    @staticmethod
    def _codes_of(command: str) -> tuple[int, ...]:
        """Return the exit codes of a command that has worked: the doctor finds something here."""
        return (0, 1) if " doctor" in command else (0,)

    def _call(self, command: str, allowed: tuple[int, ...] = (0,)) -> None:
        """Run a command; one of a tutorial until it succeeds, since a worker takes its time."""
        deadline = time.monotonic() + (TIMEOUT if self.page.stem in FROM_NOTHING else 0)
        while True:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env={**os.environ, **self._env},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            if done.returncode in allowed:
                return
            if "say --yes" in done.stdout:  # it asks, and here is no terminal
                self._call(re.sub(r"(\s+#.*)?$", r" --yes\1", command, count=1), allowed)
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stdout}")
            time.sleep(0.5)


def _has(log: Path, text: str) -> bool:
    return text in log.read_text("utf-8")


def failures(page: Path) -> Iterator[str]:
    """Run the blocks of a page, and yield a text for each that fails."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        os.chdir(folder)
        os.environ["HOOK_SECRET"] = "a secret of this run"
        sys.path.insert(0, folder)
        stage = Stage(page, Path(folder), stack)
        for block in blocks_of(page):
            if block.not_run or block.run_by:
                continue
            try:
                despite_late_python(partial(stage.run, block))
            except Exception:
                yield f"{page.name}:{block.line}\n{block.code}\n{traceback.format_exc()}"
        stage.check_printed()


if __name__ == "__main__":
    found = [*failures(Path(sys.argv[1]).resolve())]
    print(*found, sep="\n")
    sys.exit(bool(found))
