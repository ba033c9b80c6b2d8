"""``celery -A app delayq web``: the pages alone."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq.testing import ManagedProcess, wait_until
from tests.integration.conftest import MakeApp
from tests.integration.web.conftest import Scene, paths_of
from tests.integration.web.test_rights import FORMS, WRONG, stored
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.flower import APPS, OPERATOR, PASSWORDS, READER, Site

WEB = [sys.executable, "-m", "celery", "-A", "flower_tasks:app", "delayq", "web", "--port", "0"]

#: What the last server of a broker has written.
LOGS: dict[str, str] = {}


@contextmanager
def running(broker: str, *options: str, prefix: str = "") -> Iterator[Site]:
    """Yield the pages of a server, which ends by TERM."""
    env = {"CELERY_BROKER_URL": broker}
    with ManagedProcess([*WEB, *options], env=env, cwd=APPS) as process:
        found = process.wait_log(r"pages on http://127\.0\.0\.1:(\d+)\S*/delayed")
        yield Site("127.0.0.1", int(found[1]), prefix)
        LOGS[broker] = process.log
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def auth_file(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    lines = [f"{user}:{password}" for user, password in PASSWORDS.items()]
    file.write_text("\n".join(["# users", "", *lines, ""]))
    return file


@pytest.fixture
def cli(make_app: MakeApp) -> CommandLine:
    return CommandLine(make_app())


def test_the_pages_are_those_of_the_tab(scene: Scene, delayq_broker_url: str) -> None:
    with running(delayq_broker_url, "--url-prefix", "/tools/", prefix="/tools") as site:
        texts = {
            "": "Load to come",
            "/scheduled": scene.waiting,
            "/dead": scene.dead,
            "/health": "Checked ",
            f"/task/{scene.waiting}": "It is due at",
            f"/task/{scene.dead}": "the card was declined",
            "/periodic": "Minutes in which several tick",
            "/periodic/digest": "every 30 minutes",
            "/limits": "100/m",
            "/limits/stripe": "No task waits for this limit.",
            "/fleet": "Dispatchers",
        }
        assert {*paths_of(scene).values()} <= {*texts}
        for page, shown in texts.items():
            answer = site.get(f"/delayed{page}")
            assert (answer.status, shown in answer.text) == (200, True), page
            assert 'href="/tools/delayed/scheduled"' in answer.text
        for path in paths_of(scene).values():
            wrong = site.get(f"/delayed{path}?arg=order")
            assert (wrong.status, "no field arg here" in wrong.text) == (400, True), path
        for page in ("/periodic/none", "/limits/none"):
            assert site.get(f"/delayed{page}").status in (400, 404), page
        assert scene.waiting in site.get("/delayed/scheduled?argument=ada").text
        wait_until(lambda: "The doctor is looking" not in site.get("/delayed").text, TIMEOUT)
        assert site.get("/").headers["Location"] == "/tools/delayed"
        for name in re.findall(r'"/tools(/delayed/static/[^"]+)"', site.get("/delayed").text):
            file = site.get(name)
            assert (file.status, "immutable" in file.headers["Cache-Control"]) == (200, True)
        assert site.get("/delayed/static/..%2Fserver.py").status == 404
        assert site.get("/delayed", Host="evil.example").status == 403
        for form, fields in FORMS.items():
            answer = WRONG["no login"][1](site, form.partition(" ")[0], fields)
            assert answer.status == 403, form


def test_with_a_login_the_matrix_holds_too(
    scene: Scene, delayq_broker_url: str, auth_file: Path, redis: Any
) -> None:
    before = stored(redis)
    with running(delayq_broker_url, "--auth-file", str(auth_file)) as anybody:
        assert anybody.get("/delayed").status == 401
        assert anybody.as_user(OPERATOR, "wrong").get("/delayed").status == 401
        assert anybody.as_user(OPERATOR).get("/delayed", Host="pages.example").status == 200
        for form, fields in FORMS.items():
            for way, (user, ask) in WRONG.items():
                site = anybody if user is None else anybody.as_user(user)
                site.cookies.clear()
                answer = ask(site, form.partition(" ")[0], fields)
                assert answer.status in (401, 403), (form, way)
        assert stored(redis) == before

        site = anybody.as_user(OPERATOR)
        pause = {"_xsrf": site.token("/delayed"), "action": "pause", "queue": "slow"}
        assert site.post("/delayed/change", pause).status == 200
        assert site.post("/delayed/change", {**pause, "confirmed": "yes"}).status == 303
        assert "slow" in scene.delayq.paused().queues
        assert 'method="post"' not in anybody.as_user(READER).get("/delayed").text
    assert re.search(r"INFO User ops: Pause: queue slow: 1 done", LOGS[delayq_broker_url])
    with running(delayq_broker_url, "--auth-file", str(auth_file), "--read-only") as anybody:
        site = anybody.as_user(OPERATOR)
        assert 'method="post"' not in site.get("/delayed").text
        assert WRONG["no login"][1](site, "/delayed/change", pause).status == 403


def test_wrong_options_are_errors(cli: CommandLine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ran = cli("web", "--port", str(other.getsockname()[1]))
    assert (ran.code, "Address already in use" in ran.err) == (1, True)

    for lines, expected in (
        ("", "expected a line user:password"),
        ("ada", "line 1: expected user:password"),
        ("ada:secret\n:secret", "line 2: expected user:password"),
    ):
        file = tmp_path / "users"
        file.write_text(lines)
        ran = cli("web", "--auth-file", str(file))
        assert (ran.code, expected in ran.err, "secret" in ran.err) == (1, True, False)
    file.chmod(0o666)
    assert "anybody may write to it" in cli("web", "--auth-file", str(file)).err
    assert "give --auth-file" in cli("web", "--host", "0.0.0.0").err
    assert "expected a path" in cli("web", "--url-prefix", "/a?b").err


def test_without_the_extra_it_says_what_to_install(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("celery_delayq.web")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tornado"]:
        monkeypatch.setitem(sys.modules, name, None)

    ran = cli("web")

    assert (ran.code, 'pip install "celery-delayq[web]"' in ran.err) == (1, True)


def test_a_stock_broker_is_refused(make_app: MakeApp) -> None:
    app: Celery = make_app(extension=False, broker="redis://127.0.0.1:1/0")

    ran = CommandLine(app)("web")

    assert (ran.code, "needs a URL that begins with delayq+" in ran.err) == (1, True)
