"""`delayq top`: one frame for files, and a real terminal in which keys are pressed."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from celery_delayq import DelayQ, Limit
from celery_delayq.cli.lines import Paper
from celery_delayq.cli.top.drawing import Status, draw
from celery_delayq.cli.top.frame import Frame, Request, read, read_or_error
from celery_delayq.cli.top.state import Place, Screen, State
from celery_delayq.embedded import EmbeddedRedis, free_port
from celery_delayq.testing import wait_until
from celery_delayq.web.site import Site
from tests.integration.cli.conftest import CONTROLS, HOSTILE
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine
from tests.support.dead_letters import details, message
from tests.support.runs import finished
from tests.support.stopped import stopped

APPS = Path(__file__).parents[2] / "apps"
TOP = [sys.executable, "-m", "celery", "-A", "flower_tasks:app", "delayq", "top"]
LONG = "x" * 1_000_000

#: What a program may send: moves, styles, modes, and characters.
TOKEN = re.compile(r"\x1b\[(?P<numbers>[?0-9;]*)(?P<end>[A-Za-z])|(?P<one>[^\x1b])", re.DOTALL)
#: Variables that have the size of a terminal.
SIZES = ("COLUMNS", "LINES")


class TerminalScreen:
    """The characters on a screen. Understands what rich sends, and refuses all else."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._lines = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._rest = ""
        #: All parameters of styles so far, and whether the program has a screen of its own.
        self.styles: set[str] = set()
        self.is_own = False

    @property
    def is_whole(self) -> bool:
        """Whether no character of the frame is missing; only a screen of its own has frames."""
        return not self.is_own or (self._row, self._column) == (self.rows - 1, self.columns)

    @property
    def text(self) -> str:
        """The lines, without spaces at their ends."""
        return "\n".join("".join(line).rstrip() for line in self._lines)

    def feed(self, text: str) -> None:
        """Show what a program has sent."""
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            match = TOKEN.match(text, at)
            if match is None:
                if len(text) - at > 40:
                    raise AssertionError(f"the program has sent {text[at : at + 40]!r}")
                self._rest = text[at:]
                return
            at = match.end()
            if match["one"] is None:
                self._control(match["numbers"], match["end"])
            else:
                self._write(match["one"])

    def _control(self, numbers: str, end: str) -> None:
        if end == "m":
            self.styles |= {*numbers.split(";")}
        elif end == "H":
            row, _, column = numbers.partition(";")
            # A frame for the size before may still come. Terminals keep the cursor on the screen.
            self._row = min(int(row or 1), self.rows) - 1
            self._column = min(int(column or 1), self.columns) - 1
        elif (numbers, end) in {("?1049", "h"), ("?1049", "l")}:
            self.is_own = end == "h"
        elif numbers != "?25":
            raise AssertionError(f"the program has sent ESC [ {numbers} {end}")

    def _write(self, one: str) -> None:
        if one in "\r\n":
            self._column = 0
            if one == "\n" and self._row == self.rows - 1:
                self._lines = [*self._lines[1:], [" "] * self.columns]
            elif one == "\n":
                self._row += 1
            return
        if not one.isprintable():
            raise AssertionError(f"the program has sent {one!r}")
        wide = cell_len(one)
        if self._column + wide > self.columns:
            self._write("\n")
        line = self._lines[self._row]
        line[self._column : self._column + wide] = [one, *[""] * (wide - 1)]
        self._column += wide


class InTerminal:
    """A program in a terminal; a context manager that ends it."""

    def __init__(
        self, command: Sequence[str], columns: int, rows: int, cwd: Path, env: Mapping[str, str]
    ) -> None:
        self.screen = TerminalScreen(columns, rows)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._fd, its = pty.openpty()
        self.resize(columns, rows, notify=False)
        self._before = termios.tcgetattr(self._fd)

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        known = {name: value for name, value in os.environ.items() if name not in SIZES}
        self._process = subprocess.Popen(
            command, stdin=its, stdout=its, stderr=its, cwd=cwd, start_new_session=True,
            env={**known, "TERM": "xterm-256color", **env}, preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(its)
        os.set_blocking(self._fd, False)

    def __enter__(self) -> InTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._fd)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self._fd, keys.encode())

    def resize(self, columns: int, rows: int, *, notify: bool = True) -> None:
        """Change the size of the terminal."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if notify:
            is_own, self.screen = self.screen.is_own, TerminalScreen(columns, rows)
            self.screen.is_own = is_own
            os.kill(self.pid, signal.SIGWINCH)

    def text(self) -> str:
        """Return the text on the screen now."""
        # Without a program the terminal answers with an error.
        with contextlib.suppress(OSError):
            while select.select([self._fd], [], [], 0)[0]:
                data = os.read(self._fd, 65_536)
                if not data:
                    break
                self.screen.feed(self._decoder.decode(data))
        return self.screen.text

    def wait(self, pattern: str, *, gone: str = "") -> str:
        """Wait until a whole frame has *pattern* and not *gone*; return its text."""

        def is_there() -> bool:
            text = self.text()
            has_all = self.screen.is_whole and re.search(pattern, text)
            return bool(has_all) and not (gone and re.search(gone, text))

        wait_until(is_there, what=lambda: f"{pattern!r} on the screen:\n{self.screen.text}")
        return self.screen.text

    def end(self) -> int:
        """Wait until the program has ended; return its exit code."""

        def code() -> list[int]:
            self.text()  # a full terminal would stop the program
            found = self._process.poll()
            return [] if found is None else [found]

        return int(wait_until(code, what=lambda: f"its end; the screen:\n{self.screen.text}")[0])

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal has the settings that it had before the program."""
        now: list[Any] = termios.tcgetattr(self._fd)
        return now == self._before and not self.screen.is_own


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app(broker_transport_options={"delayq": {"history": 100}})


@pytest.fixture
def filled(app: Celery, delayq: DelayQ) -> None:
    """Tasks in two queues, a dead letter, a pause, a limit, a late run, a leased message."""
    for number in range(120):
        arguments = (f"customer {number}",)
        app.send_task("shop.mail", arguments, task_id=f"mail-{number}", countdown=7200 + number)
    app.send_task("shop.bill", countdown=90, queue="bills", task_id="bill")
    app.send_task("shop.mail", queue="bills")
    delayq.store.dead_letters.add(
        "bills", "dead", "failed: ValueError: declined", message("dead"), details()
    )
    delayq.pause(queue="bills")
    delayq.pause(task="shop.report")
    for store in delayq.session.stores:
        store.task_limits.announce({"stripe": Limit("stripe", rate="100/m").definition.text})
    now = delayq.store.now_ms()
    late = finished("late", now - 3, due=now - 2005, started=now - 5)
    delayq.store.history.add("me", 1, 100, [late])


def interactive(broker: str, columns: int, rows: int, *options: str, **env: str) -> InTerminal:
    return InTerminal(
        [*TOP, *options], columns, rows, APPS, {"CELERY_BROKER_URL": broker, "TZ": "UTC0", **env}
    )


# -- one frame


@pytest.mark.usefixtures("filled")
def test_one_frame_shows_all_at_a_glance(cli: CommandLine) -> None:
    ran = cli("top", "--once", columns=120)

    assert (ran.code, ran.err) == (0, "")
    shown = " ".join(ran.out.split())
    for expected in (
        "scheduled 121",
        "ready 1",
        "dead 1",
        "late p50 2 s, p99 2 s of 1 run in 10 min",
        "1 due in 60 minutes, 120 later",
        "dispatchers 0 on duty nobody",
    ):
        assert expected in shown
    for name in ("queue bills", "task shop.report"):
        assert re.search(rf"paused {name}, (now|\d+s ago)", shown)
    table = {line.split()[0]: line.split() for line in ran.out.splitlines() if line}
    assert table["queue"] == [
        "queue",
        "sched",
        "held",
        "ready",
        "run",
        "over",
        "dead",
        "oldest",
        "next",
    ]
    assert table["celery"][1:7] == ["120", "0", "0", "0", "0", "0"]
    assert table["bills"][1:8] == ["paused", "1", "0", "1", "0", "0", "1"]
    assert table["stripe"][:4] == ["stripe", "0", "0", "0"]
    first_words = [line.split(" ")[0] for line in ran.out.splitlines()]
    assert [line.split(" ")[0] for line in cli("top", columns=120).out.splitlines()] == first_words


def test_on_an_empty_redis_it_says_that_nothing_is_there(cli: CommandLine) -> None:
    ran = cli("top", "--once")

    assert (ran.code, "scheduled 0" in ran.out) == (0, True)


def test_a_redis_that_is_away_is_an_error_of_one_frame(make_app: MakeApp) -> None:
    port = free_port()
    cli = CommandLine(make_app(broker=f"delayq+redis://ada:secret@localhost:{port}/0"))

    ran = cli("top", "--once")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"Error: cannot reach Redis at localhost:{port}: Connection refused")


def test_a_stock_broker_is_refused(make_app: MakeApp) -> None:
    cli = CommandLine(make_app(extension=False, broker="redis://127.0.0.1:1/0"))

    ran = cli("top", "--once")

    assert (ran.code, "needs a URL that begins with delayq+" in ran.err) == (1, True)


@pytest.mark.full
@pytest.mark.rabbitmq
def test_on_rabbitmq_it_shows_what_there_is(make_app: MakeApp, delayq_rabbitmq: str) -> None:
    app = make_app(broker=delayq_rabbitmq)
    app.send_task("shop.mail", countdown=3600)
    cli = CommandLine(app)

    ran = cli("top", "--once")

    assert ran.code == 0
    assert "RabbitMQ counts the scheduled tasks" in " ".join(ran.out.split())
    with interactive(delayq_rabbitmq, 90, 24) as program:
        program.wait("RabbitMQ counts")
        program.press("t")
        program.wait("RabbitMQ can neither list")
        program.press("q")
        assert program.end() == 0


# -- names of others, widths, colours

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def hostile(app: Celery, delayq: DelayQ) -> None:
    """The same with names, ids and arguments that steer terminals."""
    app.send_task("shop.mail", countdown=60)
    for name in (HOSTILE, LONG, "界" * 100, "\ud7ff\u2066\u200f"):
        app.send_task(name, (name,), {"note": name}, task_id=name, queue=name, countdown=1800)
        delayq.store.dead_letters.add(
            "celery", f"dead {name}", f"failed: {name}", message(f"dead {name}", name),
            details("ValueError", message=name[:200], traceback=f"Traceback\n{name}"),
        )  # fmt: skip
        delayq.pause(task=name[:300])
        delayq.pause(queue=name[:300])
        stored = {name[:100]: Limit("a", rate="1/s").definition.text}
        delayq.store.task_limits.announce(stored)


@pytest.fixture
def site(app: Celery) -> Iterator[Site]:
    site = Site(app)
    yield site
    site.close()


PLACES = (
    Place(Screen.QUEUES),
    Place(Screen.QUEUES, filter=HOSTILE),
    Place(Screen.TASKS),
    Place(Screen.TASKS, HOSTILE, f"note {HOSTILE}"),
    Place(Screen.TASKS, LONG),
    Place(Screen.TASK, HOSTILE),
    Place(Screen.TASK, LONG),
    Place(Screen.TASK, f"nobody {HOSTILE}"),
)


@pytest.mark.usefixtures("hostile")
def test_no_name_steers_a_terminal_or_breaks_a_line(site: Site, delayq: DelayQ) -> None:
    """All widths, with and without colours, Unicode and a terminal."""
    dead = [Place(Screen.TASK, each.id) for each in delayq.dead_letters()]
    assert len(dead) == 4
    for place in (*PLACES, *dead):
        state = State((place,))
        frame = read_or_error(site, Request.of(state))
        assert bool(frame.error) == place.name.startswith("nobody"), frame.error
        for width, height, ascii_only, no_color in product(
            (20, 40, 80, 200), (5, 24, None), (False, True), (False, True)
        ):
            status = Status("redis://host/0", 2, frame.error)
            picture = draw(state, frame, status, Paper(width, ascii_only), height)
            assert height is None or len(picture.lines) == height
            assert max(line.cell_len for line in picture.lines) <= width
            shown = printed(picture.lines, width, no_color=no_color)
            assert not CONTROLS.search(ESCAPES.sub("", shown)), (place.screen, width, height)
            assert not re.search(r"[\u2066\u200f]", shown)
            assert len(shown) < 500_000
            assert not (no_color and re.search(r"\x1b\[[0-9;]*\b(3[0-7]|9[0-7])\b", shown))


def printed(lines: Sequence[Text], width: int, *, no_color: bool) -> str:
    """Return what a terminal gets."""
    output = StringIO()
    terminal = Console(
        file=output, force_terminal=True, width=width, no_color=no_color, legacy_windows=False
    )
    for line in lines:
        terminal.print(line, soft_wrap=True)
    return output.getvalue()


@pytest.mark.usefixtures("hostile")
def test_a_hostile_frame_is_printed_to_a_file(cli: CommandLine) -> None:
    for columns in (40, 80):
        ran = cli("top", "--once", columns=columns)
        assert (ran.code, CONTROLS.search(ran.out)) == (0, None)
        assert max(map(cell_len, ran.out.splitlines())) <= columns


#: Ways to run it, and what it then sends: is it one frame, has it colours, is it ASCII.
WAYS = {
    "a terminal": ({}, True, (False, True, False)),
    "without colour": ({"NO_COLOR": "1"}, True, (False, False, False)),
    "a dumb terminal": ({"TERM": "dumb"}, True, (True, False, False)),
    "ASCII": ({"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, True, (False, True, True)),
    "a pipe": ({}, False, (True, False, False)),
}


def way_and_columns() -> Iterator[Any]:
    """Yield all ways at all widths; of the wide ones, `make test-full` has one each."""
    for way in WAYS:
        yield pytest.param(way, 40)
        for columns in (80, 200):
            telling = (way, columns) in (("a terminal", 80), ("a pipe", 200))
            mark = pytest.mark.full if telling else pytest.mark.nightly
            yield pytest.param(way, columns, marks=mark)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(("way", "columns"), [*way_and_columns()])
def test_each_kind_of_terminal_gets_what_it_can_show(
    delayq_broker_url: str, way: str, columns: int
) -> None:
    env, is_terminal, (is_one_frame, has_colour, is_ascii) = WAYS[way]
    if not is_terminal:
        known = {**os.environ, "CELERY_BROKER_URL": delayq_broker_url, "COLUMNS": str(columns)}
        done = subprocess.run(TOP, capture_output=True, text=True, cwd=APPS, env=known)
        assert (done.returncode, "scheduled 121" in done.stdout) == (0, True), done.stderr
        assert "\x1b" not in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= columns
        return
    with interactive(delayq_broker_url, columns, 24, **env) as program:
        shown = program.wait("scheduled 121" if not is_one_frame else "(?s)scheduled.*dispatchers")
        if not is_one_frame:
            assert program.screen.is_own
            program.press("q")
        assert program.end() == 0
        assert program.is_as_before
        colours = {style for style in program.screen.styles if re.fullmatch("3[0-7]|9[0-7]", style)}
        assert bool(colours) == has_colour
        assert shown.isascii() or not is_ascii


# -- keys


@pytest.mark.usefixtures("filled")
def test_a_reader_finds_a_task_by_its_customer_and_sees_why_it_waits(
    app: Celery, delayq_broker_url: str
) -> None:
    with interactive(delayq_broker_url, 110, 30, "--interval", "0.3") as program:
        program.wait(r"celery +120 ")
        program.press("/bil")
        program.wait(r"filter: bil_")
        program.press("\r")
        program.wait(r"bills +paused", gone="celery +120")
        program.press("\x1b")
        program.wait(r"celery +120 ")
        program.press("\x1b[H\r")
        program.wait(r"queue celery  50 of 120 scheduled")
        program.press("n")
        program.wait(r"mail-50")
        program.press("\x1b")
        program.wait(r"shop.mail +scheduled +mail-0 ")
        program.press("/nobody\r")
        program.wait(r"Nothing matches\.")
        program.press("\x1b")
        program.wait(r"shop.mail +scheduled +mail-0 ")
        program.press("/customer 77\r")
        program.wait(r"1 found, searched 120 of 120")
        program.press("\r")
        shown = program.wait("It is due at")
        assert "('customer 77',)" in shown
        assert "mail-77" in shown
        program.press("\x1b\x1b")
        program.wait(r"50 of 120 scheduled")
        program.press("odead\r")
        program.wait("the card was declined")
        program.press("onobody\r")
        program.wait("(?i)nothing is known|unknown")
        program.press("\x1b\x1b\x1b")
        program.wait(r"celery +120 ")

        program.press(" ")
        program.wait("stopped")
        app.send_task("shop.mail", countdown=60)
        program.press("s")
        program.wait("overv")
        ends = time.monotonic() + 1.0  # three intervals
        wait_until(lambda: program.text() and time.monotonic() > ends, what="three looks")
        assert re.search(r"celery +120 ", program.text())
        program.press(" ")
        program.wait(r"celery +121 ")

        program.resize(40, 12)
        shown = program.wait(r"celery +121")
        assert max(map(len, shown.splitlines())) <= 40
        program.press("q")
        assert program.end() == 0
        assert program.is_as_before


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_signals_end_it_and_leave_the_terminal_as_it_was(
    delayq_broker_url: str, number: signal.Signals
) -> None:
    with interactive(delayq_broker_url, 80, 24) as program:
        program.wait("scheduled 0")
        if number is signal.SIGINT:
            program.press("\x03")
        else:
            os.kill(program.pid, number)
        assert program.end() == 0
        assert program.is_as_before
        assert "Traceback" not in program.text()


@pytest.mark.full
def test_it_can_be_suspended_and_goes_on(delayq_broker_url: str) -> None:
    with interactive(delayq_broker_url, 80, 24) as program:
        program.wait("scheduled 0")
        program.press("\x1a")
        wait_until(lambda: program.text() is not None and program.is_as_before, what="it stops")
        os.kill(program.pid, signal.SIGCONT)
        program.wait("scheduled 0")
        wait_until(lambda: program.text() is not None and program.screen.is_own, what="its screen")
        program.press("q")
        assert program.end() == 0
        assert program.is_as_before


@pytest.mark.full
def test_while_redis_is_silent_or_away_it_says_so_and_then_goes_on(
    delayq_redis_factory: Callable[..., EmbeddedRedis], make_app: MakeApp
) -> None:
    server = delayq_redis_factory()
    broker = server.url_for("delayq+redis")
    app = make_app(broker=broker)
    app.send_task("shop.mail", countdown=3600)
    with interactive(broker, 100, 24, "--interval", "0.3") as program:
        program.wait(r"celery +1 ")
        with stopped(server.pid):
            program.wait(r"no answer for \ds")
            program.wait(r"shown: \ds old")
            assert re.search(r"celery +1 ", program.text())
            program.press("/cel\r")
            program.wait("filter cel")
        program.wait(r"celery +1 ", gone="no answer|cannot reach")
        server.kill()
        program.wait(r"cannot reach Redis at \S+:\d+")
        server.start()
        make_app(broker=broker).send_task("shop.mail", countdown=3600)
        program.wait("celery", gone="cannot reach")
        program.press("q")
        assert program.end() == 0
    with stopped(server.pid), interactive(broker, 100, 24) as program:
        program.wait("no answer for")
        program.press("q")  # at once, although the answer is missing
        assert program.end() == 0


@pytest.mark.full
def test_it_may_begin_before_redis_does(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> None:
    server = delayq_redis_factory()
    broker = server.url_for("delayq+redis")
    server.stop()
    with interactive(broker, 100, 24, "--interval", "0.3") as program:
        program.wait("cannot reach Redis at")
        server.start()
        program.wait("scheduled 0", gone="cannot reach")
        program.press("q")
        assert program.end() == 0


@pytest.mark.full
def test_a_wrong_password_is_reported_at_once(
    delayq_redis_factory: Callable[..., EmbeddedRedis],
) -> None:
    server = delayq_redis_factory(password="right")
    broker = re.sub("//[^@]*@", "//:wrong@", server.url_for("delayq+redis"))
    with interactive(broker, 100, 24) as program:
        shown = program.wait("Error: ")
        assert program.end() == 1
        assert "wrong@" not in shown


def test_a_frame_needs_no_package_of_the_web_extra() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['tornado', 'flower']))\n"
        "import celery_delayq.cli.commands.services.top, celery_delayq.cli.commands.plot"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_task_that_has_gone_meanwhile_is_reported(
    site: Site, app: Celery, delayq: DelayQ
) -> None:
    app.send_task("shop.mail", countdown=3600, task_id="mail")
    request = Request.of(State((Place(Screen.TASK, "mail"),)))
    before: Frame = read(site, request)
    delayq.cancel("mail")
    after = read_or_error(site, request)

    assert before.task is not None
    assert "Nothing is known of it" in after.error
