"""How commands end: with 2 where they are used wrongly, with 1 where something was not done."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
import pytest
import redis.retry
from celery import Celery
from kombu.exceptions import OperationalError
from kombu.utils import functional
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeout

from celery_delayq import DelayQ
from celery_delayq.cli.options import (
    DurationType,
    JsonType,
    NameType,
    TimeType,
    WantedArgumentType,
)
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.ports import free_port
from celery_delayq.errors import BrokerTimeout
from celery_delayq.store.error_text import cure
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine, leaves
from tests.support.dead_letters import message, stored
from tests.support.schedules import state
from tests.support.stopped import stopped

# The package has the function under this name.
command_module = import_module("celery_delayq.cli.command")

COMMANDS = dict(leaves())

#: What each type of value cannot be.
BAD = {TimeType: "soon", DurationType: "soon", JsonType: "{", NameType: "", click.Choice: "nope"}
BAD |= {click.IntRange: "x", click.FloatRange: "x", WantedArgumentType: "x"}
BAD |= {click.Path: "/no/such/file"}


def required(command: click.Command) -> list[str]:
    """Return something for all arguments that a command needs."""
    return ["x" for each in command.params if isinstance(each, click.Argument) and each.required]


def test_what_there_is_not_is_wrong_use_of_every_command(cli: CommandLine) -> None:
    for name, command in COMMANDS.items():
        ended = cli(*name.split(), *required(command), "--nonsense")
        assert (ended.code, ended.out) == (2, ""), (name, ended)
        assert "No such option '--nonsense'" in ended.err.replace('"', "'")


def test_a_missing_argument_or_one_too_many_is_wrong_use_of_every_command(cli: CommandLine) -> None:
    for name, command in COMMANDS.items():
        arguments = [each for each in command.params if isinstance(each, click.Argument)]
        # Where nothing has to be given, all but some ids is too much.
        spare = not required(command) and all(each.nargs == 1 for each in arguments)
        given = ["x"] * (len(arguments) + 1) if spare else []
        ended = cli(*name.split(), *given)
        assert (ended.code, ended.out) == (2, ""), (name, ended)
        assert "Error: " in ended.err


def test_a_bad_value_is_wrong_use_of_every_option(cli: CommandLine) -> None:
    for name, command in COMMANDS.items():
        for option in command.params:
            if not isinstance(option, click.Option) or option.is_flag or option.nargs != 1:
                continue
            bad = BAD[type(option.type)]
            given = [*required(command), option.opts[0], bad]
            ended = cli(*name.split(), *given)
            assert (ended.code, ended.out) == (2, ""), (name, option.opts, ended)
            assert f"Invalid value for '{option.opts[0]}" in ended.err, (name, ended)


#: Lines that no command can mean; values of a wrong type are tested above.
WRONG = (
    "list --limit 0",
    "list --limit 10001",
    "list --due-to 99999999999999999999d",
    "list --priority -1",
    "list --queue \udcff",
    "list --all --limit 5",
    "list --all --cursor x",
    f"list --due-to {'9' * 400}",
    "cancel '' --yes",
    "cancel id --task x",
    "cancel id --due-to 1h",
    "cancel id --priority 0",
    "cancel id --dry-run",
    "cancel a b --if-eta 2030-01-01",
    "cancel --task x --yes --if-eta 2030-01-01",
    "cancel --yes",
    "cancel --everything",
    "cancel --everything id",
    "cancel --everything --queue bills --yes",
    "run-now",
    "run-now --yes",
    "reschedule id",
    "reschedule id --eta 2100-01-01 --in 5m",
    "reschedule id --in 5m --by 5m",
    "reschedule id --in 0",
    "reschedule id --in -5m",
    "reschedule id --in 1h-30m",
    "reschedule id --in 99999999999d",
    "reschedule id --by 0s",
    "reschedule --everything --yes",
    "reschedule --by 1h --yes",
    "pause",
    "pause --queue a --task b",
    "resume",
    "dead replay",
    "dead purge",
    "dead replay --yes",
    "dead purge --yes",
    "dead purge --json",
    "dead purge --queue bills",
    "dead replay --everything",
    "dead purge --everything --json",
    "dead purge --everything --queue bills --yes",
    "dead purge --everything nine",
    "dead purge nine --task x",
    "dead purge nine --dry-run",
    "dead replay nine --rate 5",
    "dead replay --everything --yes --in 5m",
    "dead replay --everything --yes --eta 2100-01-01",
    "dead replay nine --eta 2100-01-01 --in 5m",
    "dead replay nine --args 7",
    "dead replay nine --args {}",
    "dead replay nine --kwargs []",
    "dead replay nine --in 0",
    "dead replay --everything --yes --rate 0",
    "dead list --limit 0",
    "dead list --all --limit 5",
)


@pytest.mark.parametrize("line", WRONG)
@pytest.mark.usefixtures("four_dead_letters", "_scheduled")
def test_what_cannot_be_meant_is_a_usage_error(cli: CommandLine, delayq: DelayQ, line: str) -> None:
    before = state(delayq)

    ran = cli(*shlex.split(line))

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("Error: ")
    assert state(delayq) == before


#: Lines, how they end, and what they say.
ENDS = (
    ("stats", 0, ""),
    ("cancel nobody", 1, ""),
    ("periodic remove --ended --json", 0, ""),
    ("nonsense", 2, "No such command 'nonsense'"),
    ("periodic nonsense", 2, "No such command 'nonsense'"),
)


#: Commands that give a task arguments.
NOT_TAKEN = (
    ("update waits --args [1,2,3]", "shop.post"),
    ("dead replay dead --args [1,2,3]", "shop.post"),
    ("""dead replay dead --kwargs '{"cc": 1}'""", "shop.post"),
    ("periodic add new shop.post --every 5 --args [1,2,3]", "shop.post"),
    ("periodic update old --args [1,2,3]", "shop.post"),
)


def _post(to: int) -> None:
    """Take one argument."""


@pytest.mark.parametrize(("line", "said"), NOT_TAKEN)
def test_what_a_task_does_not_take_is_wrong_use_of_every_command(
    cli: CommandLine, delayq: DelayQ, line: str, said: str
) -> None:
    app = delayq.app
    app.task(name="shop.post", shared=False)(_post)
    app.send_task("shop.post", (1,), countdown=3600, task_id="waits")
    delayq.periodic.add("old", 5, "shop.post", (1,))
    dead = stored(1000, "it failed", message("dead", "shop.post"))
    delayq.store.dead_letters.restore("celery", [("dead", 1000, dead)])
    before = state(delayq)

    ran = cli(*shlex.split(line))

    assert (ran.code, ran.out, said in ran.err) == (2, "", True), ran
    assert state(delayq) == before


@pytest.fixture
def _scheduled(delayq_broker_url: str) -> None:
    with Celery("shop", broker=delayq_broker_url, set_as_current=False) as app:
        app.send_task("shop.mail", countdown=3600)


@pytest.mark.parametrize(("line", "code", "said"), ENDS)
@pytest.mark.usefixtures("_scheduled")
def test_what_was_not_done_has_another_exit_code_than_wrong_use(
    cli: CommandLine, line: str, code: int, said: str
) -> None:
    ended = cli(*line.split())

    assert (ended.code, said in " ".join(ended.err.split())) == (code, True), ended


@pytest.mark.full
@pytest.mark.parametrize(
    "line",
    [
        "stats",
        pytest.param("periodic list", marks=pytest.mark.nightly),
        pytest.param("migrate --to stock", marks=pytest.mark.nightly),
        "dispatch",
    ],
)
def test_without_an_app_the_error_says_how_to_give_one(tmp_path: Path, line: str) -> None:
    command = [sys.executable, "-m", "celery", "delayq", *line.split()]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert (ended.returncode, ended.stdout) == (2, "")
    how = f"such as: celery -A shop delayq {line.partition(' --')[0]}"
    assert f"Error: which app? Give its module before the command, {how}" in ended.stderr


def test_a_redis_that_is_away_is_reported_by_its_address(make_app: MakeApp) -> None:
    port = free_port()
    broker = f"delayq+redis://ada:se%40cret@localhost:{port}/0"
    cli = CommandLine(make_app(broker=broker))

    for line in ("list", "cancel x", "fsck", "periodic list", "export -"):
        ended = cli(*line.split())
        expected = (
            f"Error: cannot reach Redis at localhost:{port}: Connection refused; start it, or "
            "correct the broker URL\n"
        )
        assert (ended.code, ended.out, ended.err) == (1, "", expected), line


def test_a_silent_redis_is_given_up(
    delayq_redis_factory: Callable[..., EmbeddedRedis],
    make_app: MakeApp,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_module, "REDIS_TIMEOUT_SECONDS", 0.3)
    server = delayq_redis_factory()
    for name in ("stats", "fsck", "list", "paused"):
        cli = CommandLine(make_app(broker=server.url_for("delayq+redis")))
        with stopped(server.pid):
            ended = cli(name)
        assert (ended.code, ended.out) == (1, "")
        assert f":{server.port}" in ended.err, (name, ended)
        assert "imeout" in ended.err, (name, ended)


def test_timeouts_of_the_app_come_first(make_app: MakeApp) -> None:
    app = make_app(broker_transport_options={"socket_timeout": 7})

    assert CommandLine(app)("paused").code == 0

    with DelayQ.of(app).session.connection() as connection:
        options = connection.transport_options
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (7, 2.0)
    assert app.conf.broker_transport_options == {"socket_timeout": 7}


@pytest.mark.parametrize("own", [{}, {"max_retries": 5}], ids=["ours", "of the app"])
@pytest.mark.parametrize("servers", [1, 4])
def test_servers_that_are_away_are_tried_without_a_sleep(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, servers: int, own: dict[str, int]
) -> None:
    slept: list[float] = []
    for module in (functional, redis.retry):
        monkeypatch.setattr(module, "sleep", slept.append)
    urls = ";".join(f"sentinel://localhost:{free_port()}" for _ in range(servers))
    options = {"master_name": "mymaster", **own}
    cli = CommandLine(make_app(broker=f"delayq+{urls}", broker_transport_options=options))

    assert cli("stats").code == 1
    assert sum(slept) == 0


#: Errors as redis-py and kombu raise them, and what the line says to do.
CURES: dict[str, tuple[Exception, str]] = {
    "refused": (ConnectionError("Error 111 connecting to db:6379. Connection refused."), "start"),
    "connecting takes too long": (RedisTimeout("Timeout connecting to server"), "socket_"),
    "no reply": (RedisTimeout("Timeout reading from db:6379"), "socket_timeout"),
    "no reply of ours": (BrokerTimeout("no answer"), "socket_timeout"),
    "loading": (BusyLoadingError("Redis is loading the dataset in memory"), "has read its data"),
    "wrong password": (AuthenticationError("invalid username-password pair"), ""),
    "another error": (ResponseError("WRONGTYPE"), ""),
}


@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "of kombu"])
@pytest.mark.parametrize("name", CURES)
def test_the_cure_is_that_of_the_cause(name: str, wrapped: bool) -> None:
    exc, said = CURES[name]
    if wrapped and name != "another error":
        exc, cause = OperationalError(str(exc)), exc
        exc.__cause__ = cause

    found = cure(exc)

    assert (said in found, bool(found)) == (True, bool(said))
    assert ("start it" in found) == (name == "refused")


def test_a_wrong_password_is_no_server_to_start(
    delayq_redis_factory: Callable[..., EmbeddedRedis], make_app: MakeApp
) -> None:
    server = delayq_redis_factory()
    broker = server.url_for("delayq+redis").replace("//", "//ada:wrong@")

    ended = CommandLine(make_app(broker=broker))("stats")

    assert (ended.code, "start it" in ended.err) == (1, False)
    assert ended.err.count("password in the URL of the broker") == 1
