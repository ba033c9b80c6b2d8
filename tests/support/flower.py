"""A real Flower of any version, and requests to its pages."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import subprocess
import sys
import threading
import urllib.parse
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from celery import Celery

from celery_delayq.embedded import free_port
from celery_delayq.testing import ManagedProcess
from celery_delayq.web.pages import PAGES
from celery_delayq.web.server import PageServer, ServerOptions
from tests.support import TIMEOUT

ROOT = Path(__file__).parents[2]
APPS = ROOT / "tests" / "apps"

#: The oldest supported release. The newest is the installed one.
OLDEST = "2.0.1"

#: Users of the tests, and their passwords: the app of the tests allows changes to the first.
OPERATOR, READER = "ops", "reader"
PASSWORDS = {OPERATOR: "right", READER: "also right"}


def unpacked(release: str) -> Path:
    """Return the folder with a release of Flower, which is fetched once."""
    folder = ROOT / ".upstream" / f"flower-{release}"
    if folder.exists():
        return folder
    folder.parent.mkdir(exist_ok=True)
    # Tests in other processes may fetch the same release: whoever is first names the folder.
    with TemporaryDirectory(dir=folder.parent) as own:
        new = Path(own, "new")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(new)]
        subprocess.run([*pip, f"flower=={release}"], check=True)
        try:
            new.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder


#: What pages of one object are about, by the name of the page.
PAGE_OBJECTS = {"periodic": "entry", "limits": "limit", "task": "task", "job": "change"}


def page_paths(**objects: Sequence[str]) -> dict[str, str]:
    """Return the path below ``/delayed`` of each page, by its name.

    Parameters
    ----------
    objects : Sequence[str]
        Names and ids of objects, by the values of :data:`PAGE_OBJECTS`. Each has the path of its
        page, by the name of the page and that of the object.
    """
    paths: dict[str, str] = {}
    for name, page in PAGES.items():
        path = "" if name == "overview" else f"/{name}"
        if page.title:
            paths[name] = path
        for each in objects.get(PAGE_OBJECTS.get(name, ""), ()):
            paths[f"{name} {each}"] = f"{path}/{urllib.parse.quote(each, safe='')}"
    return paths


@contextmanager
def running_flower(
    broker: str,
    backend: str,
    folder: Path,
    options: Sequence[str] = (),
    *,
    release: str = "",
    app: str = "flower_tasks:app",
    prefix: str = "",
    settings: Mapping[str, str] | None = None,
) -> Iterator[tuple[Site, ManagedProcess]]:
    """Yield a running Flower, and its process. An empty *release* is the installed one."""
    port = free_port()
    which = ["-A", app] if app else [f"--broker={broker}"]
    command = [sys.executable, "-m", "celery", *which, "flower"]
    command += ["--address=127.0.0.1", f"--port={port}", *options]
    if prefix:
        command.append(f"--url_prefix={prefix}")
    env = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": backend, **(settings or {})}
    if release:
        paths = [str(unpacked(release)), *filter(None, [os.environ.get("PYTHONPATH")])]
        env["PYTHONPATH"] = os.pathsep.join(paths)
    log = folder / f"flower-{port}.log"
    with ManagedProcess(command, env=env, cwd=APPS, log_file=log, name="flower") as process:
        process.wait_log("Registered tasks")
        yield Site("127.0.0.1", port, f"/{prefix}" if prefix else ""), process


@contextmanager
def serving_pages(app: Celery) -> Iterator[Site]:
    """Yield the pages of an app to the first of the users, served by this process."""
    server = PageServer(app, ServerOptions(port=0, passwords=PASSWORDS))
    loop, stopping = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(stopping),))
    thread.start()
    try:
        port = urllib.parse.urlsplit(server.url).port
        assert port is not None
        yield Site("127.0.0.1", port).as_user(OPERATOR)
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(TIMEOUT)
        loop.close()


class Answer(NamedTuple):
    """Status, headers and text of an answer."""

    status: int
    headers: Mapping[str, str]
    text: str


class Site:
    """A browser without scripts: it keeps cookies, and sends forms."""

    def __init__(self, host: str, port: int, prefix: str = "") -> None:
        self.host, self.port, self.prefix = host, port, prefix
        self.cookies: dict[str, str] = {}
        self.headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        """The address, with the prefix."""
        return f"http://{self.host}:{self.port}{self.prefix}"

    def as_user(self, user: str, password: str | None = None) -> Site:
        """Return the same with the header of a user, and without cookies."""
        given = f"{user}:{PASSWORDS[user] if password is None else password}"
        other = Site(self.host, self.port, self.prefix)
        other.headers["Authorization"] = f"Basic {b64encode(given.encode()).decode()}"
        return other

    def get(self, path: str, **headers: str) -> Answer:
        """Return the answer to a GET."""
        return self.ask("GET", path, None, headers)

    def post(self, path: str, fields: Mapping[str, Any], **headers: str) -> Answer:
        """Return the answer to a form."""
        body = urllib.parse.urlencode(fields, doseq=True, errors="surrogateescape")
        return self.ask(
            "POST", path, body, {"Content-Type": "application/x-www-form-urlencoded", **headers}
        )

    def ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        """Return an answer. Names of headers may have ``_`` for ``-``."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT)
        sent = {
            name.replace("_", "-"): value for name, value in {**self.headers, **headers}.items()
        }
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, self.prefix + path, body, sent)
            reply = connection.getresponse()
            for cookie in reply.headers.get_all("Set-Cookie", []):
                name, _, value = cookie.partition(";")[0].partition("=")
                self.cookies[name] = value
            return Answer(reply.status, dict(reply.headers), reply.read().decode())
        finally:
            connection.close()

    def token(self, path: str = "/delayed") -> str:
        """Return the token in the forms of a page."""
        found = re.search(r'name="_xsrf" value="([^"]+)"', self.get(path).text)
        assert found, path
        return found[1]
