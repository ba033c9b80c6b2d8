"""The example project as a user runs it, with fewer flights and a shorter day."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date, timedelta
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import matplotlib.image
import numpy as np
import psutil
import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.periodic.policy import GRACE_MS
from celery_delayq.testing import wait_until
from example_project import publish
from example_project.demo import main
from example_project.flights import Flight, load_flights, midnight, thin_out
from example_project.news import changes_after, news_of
from example_project.plan import HOUR, CompressedClock, in_whole_hours
from example_project.records import Records
from example_project.services import Services
from example_project.settings import BROKER_URL_VARIABLE, LEDGER_URL_VARIABLE
from example_project.tower import Tower
from example_project.traffic import NAME, hours_of, tick_id, traffic_problems
from tests.support import TIMEOUT
from tests.support.skips import need_rabbitmq

pytestmark = pytest.mark.full

CHECKOUT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "-m", "example_project"]
SNOW_STORM = date(2013, 3, 8)
#: Seconds after which a run of the demo counts as hanging.
LIMIT_S = 6 * TIMEOUT
OTHER_BROKERS = ("cluster", "rabbitmq")


class Row(NamedTuple):
    """A row of the table of the sums."""

    planned: int
    moved: int
    cancelled: int
    run: int
    early: int
    lost: int
    twice: int


class Changes(NamedTuple):
    """A row of the table of changes: reminders of late and cancelled flights."""

    reminders: int
    in_time: int
    ready: int
    running: int
    had_run: int


class Webhooks(NamedTuple):
    """A row of the table of the webhooks."""

    sent: int
    at_once: int
    second: int
    third: int
    fourth: int
    dead: int
    replayed: int
    refused: int


class Traffic(NamedTuple):
    """A row of the table of the traffic reports, without the mean delay."""

    reports: int
    flights: int
    cancelled: int
    departed: int
    late: int


#: A type of rows.
Numbers = TypeVar("Numbers", Row, Changes, Webhooks)


def traffic_in(output: str) -> dict[str, tuple[Traffic, float | None]]:
    """Return the rows of the traffic reports and the mean delays in minutes, by the hour."""
    rows = re.findall(
        r"│ (\w{3} \d\d-\d\d|total)\s*((?:│\s*\d+\s*){5})│\s*(-|-?[\d.]+ min) │", output
    )
    return {
        name: (
            Traffic(*map(int, re.findall(r"\d+", numbers))),
            None if mean == "-" else float(mean.removesuffix(" min")),
        )
        for name, numbers, mean in rows
    }


def words(output: str) -> str:
    """Return an output without the ends of its lines."""
    return " ".join(output.split())


def row_in(output: str, row: str, kind: type[Numbers]) -> Numbers:
    """Return a row of the table with this type of rows."""
    count = len(kind._fields)
    match = re.search(rf"│ {row}\s*" + r"│\s*(\d+)\s*" * count + "│\n", output)
    assert match, output
    return kind(*map(int, match.groups()))


def lateness_in(output: str, part: str) -> tuple[int, list[float]]:
    """Return the number of tasks, and p50, p99 and max in milliseconds."""
    figures = r"│\s*([\d.]+) ms " * 3
    match = re.search(rf"│ {part}[^│]*│\s*(\d+) {figures}│\n", output)
    assert match, output
    count, *milliseconds = match.groups()
    return int(count), [float(number) for number in milliseconds]


def run_demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [*DEMO, *options]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=LIMIT_S)


def run_day(*options: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a day; also return its seconds. A slow machine gets more of them, also for publishing."""
    for slower in (1, 4, 12):
        seconds = in_whole_hours(20 * slower)
        times = ["--seconds-per-day", f"{20 * slower}", "--seconds-before", f"{30 * slower}"]
        done = run_demo(*options, *times)
        if done.returncode == 0 and row_in(done.stdout, "check-in", Row).moved > 0:
            break
    return seconds, done


@contextmanager
def running_demo(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demo. Afterwards its remaining processes are ended by their ids.

    A demo that is killed leaves its logs in `folder`.
    """
    with subprocess.Popen(
        [*DEMO, *options],
        cwd=CHECKOUT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"the demo ended without saying {text!r}")


def assert_traffic_is_that_of(flights: Sequence[Flight], output: str, seconds: float) -> None:
    """Count the flights again, by the hour in which they left or should have left."""
    rows = traffic_in(output)
    total, mean = rows.pop("total")
    delays: dict[str, list[timedelta | None]] = defaultdict(list)
    for flight in flights:
        hour = flight.departed or flight.scheduled
        delays[f"{hour:%a %H}-{hour.hour + 1:02}"].append(flight.delay)
    last = max(flight.departed or flight.scheduled for flight in flights)
    hours = (last - midnight(SNOW_STORM)) // timedelta(hours=1) + 1

    for name in (*delays, "total"):
        counted, minutes = (total, mean) if name == "total" else rows[name]
        of_hour = [*chain(*delays.values())] if name == "total" else delays[name]
        left = [delay for delay in of_hour if delay is not None]
        assert counted == Traffic(
            reports=hours if name == "total" else 1,
            flights=len(of_hour),
            cancelled=len(of_hour) - len(left),
            departed=len(left),
            late=sum(delay >= timedelta(minutes=15) for delay in left),
        )
        if left:
            exact = sum(left, timedelta()) / len(left) / timedelta(minutes=1)
            assert minutes == pytest.approx(exact, abs=0.051)
    assert total.flights == len(flights)
    assert total.reports == sum(row.reports for row, _ in rows.values())
    assert f"{hours} traffic reports, one every {seconds / 24:g} s" in output
    assert f"{hours} hours, each with one traffic report: together {len(flights)}" in output


@pytest.mark.parametrize(
    "broker", ["redis", *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHER_BROKERS)]
)
def test_a_short_day_runs_every_reminder_once_and_those_of_no_cancelled_flight(
    broker: str, tmp_path: Path
) -> None:
    on_redis = broker != "rabbitmq"
    if not on_redis:
        need_rabbitmq()
    picture = tmp_path / "new" / "demo.png"
    options = ["--flights", "300", "--picture", str(picture)]

    seconds, done = run_day(*options, "--broker", broker)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 flights x 2 reminders = 600 tasks" in done.stdout
    total = row_in(done.stdout, "total", Row)
    for kind in ("check-in", "boarding"):
        row = row_in(done.stdout, kind, Row)
        assert row.planned == 300 == row.run + row.cancelled
        assert row.moved > 0
        assert (row.early, row.lost, row.twice) == (0, 0, 0)
    assert total.planned == 600 == total.run + total.cancelled
    assert (total.early, total.lost, total.twice) == (0, 0, 0)

    news = news_of(thin_out(load_flights(SNOW_STORM), 300))
    moved = row_in(done.stdout, "late: move", Changes)
    cancelled = row_in(done.stdout, "cancelled", Changes)
    assert moved.reminders == changes_after(news)["move"] == sum(moved[1:])
    assert cancelled.reminders == changes_after(news)["cancel"] == sum(cancelled[1:])
    assert (moved.in_time, cancelled.in_time) == (total.moved, total.cancelled)
    assert moved.had_run > 0, "short delays become known when the check-in is over"
    if on_redis:
        again = re.search(r"And again.* (\d+)/600", done.stdout)
        assert again is not None, done.stdout
        assert int(again[1]) > 0
    else:
        assert "all is published once" in done.stdout
        assert re.search(r"RabbitMQ has 6\d\d scheduled tasks", done.stdout), done.stdout

    webhooks = row_in(done.stdout, "total", Webhooks)
    for kind in ("check-in", "boarding"):
        assert row_in(done.stdout, kind, Webhooks).sent == row_in(done.stdout, kind, Row).run
    assert webhooks.sent == total.run == sum(webhooks[1:6])
    assert min(webhooks) > 0, "something of everything"
    assert webhooks.at_once > webhooks.sent * 0.7
    assert webhooks.dead == webhooks.replayed + webhooks.refused
    assert f"{webhooks.dead} webhooks are dead letters" in done.stdout
    assert f"{webhooks.replayed} DeliveryFailed, {webhooks.refused} DeliveryRefused" in done.stdout
    requests = re.search(
        r"(\d+) requests, (\d+) of them again since the answer was lost", done.stdout
    )
    assert requests is not None, done.stdout
    assert int(requests[1]) > webhooks.sent + webhooks.dead
    assert int(requests[2]) > 0
    at_once = re.search(r"limit of 4 webhooks at once .* it had (\d+) at", words(done.stdout))
    if on_redis:
        assert at_once is not None, done.stdout
        assert 0 < int(at_once[1]) <= 4
    else:
        assert at_once is None

    assert_traffic_is_that_of(thin_out(load_flights(SNOW_STORM), 300), done.stdout, seconds)

    parts = ("due to ready: the dispatcher", "ready to start") if on_redis else ()
    for part in (*parts, "due to start"):
        tasks, (p50, p99, longest) = lateness_in(done.stdout, part)
        assert tasks == total.run
        assert 0 <= p50 <= p99 <= longest
    assert p50 > 0

    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape[:2] == (1260, 1800)
    colours = np.unique((pixels[..., :3] * 255).astype(np.uint8).reshape(-1, 3), axis=0)
    dispatch = [(0x2A, 0x9D, 0x8F)] if on_redis else []
    for wanted in ((0x4C, 0x9B, 0xE8), (0xF2, 0xA5, 0x41), *dispatch):
        assert (np.abs(colours.astype(int) - wanted).sum(axis=1) <= 3).any(), wanted


@pytest.mark.parametrize(
    "number",
    [
        *(
            pytest.param(each, marks=pytest.mark.nightly)
            for each in (signal.SIGINT, signal.SIGTERM)
        ),
        signal.SIGKILL,
    ],
)
def test_an_interrupted_demo_leaves_no_process_behind(
    number: signal.Signals, tmp_path: Path
) -> None:
    picture = tmp_path / "demo.png"
    with running_demo(tmp_path, "--flights", "20", "--picture", str(picture)) as process:
        flower = wait_for_line(process, "Flower: ").split()[-1]
        children = psutil.Process(process.pid).children(recursive=True)
        commands = [" ".join(child.cmdline()) for child in children]
        assert sum(" worker " in command for command in commands) >= 2
        assert any("redis-server" in command for command in commands)
        assert any("example_project.receiver" in command for command in commands)
        with urllib.request.urlopen(flower, timeout=TIMEOUT) as page:
            assert b"Flower" in page.read()

        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)

        assert process.returncode != 0
        assert psutil.wait_procs(children, timeout=TIMEOUT)[1] == []
        assert not picture.exists()


@pytest.mark.nightly
def test_a_demo_that_stays_ends_with_the_address_of_the_tab(tmp_path: Path) -> None:
    times = ("--seconds-per-day", "20", "--seconds-before", "10", "--flights", "50")
    picture = tmp_path / "demo.png"
    with running_demo(tmp_path, "--stay", "--picture", str(picture), *times) as process:
        address = wait_for_line(process, "Delayed tasks: ").split()[-1]
        children = psutil.Process(process.pid).children(recursive=True)
        with urllib.request.urlopen(address, timeout=TIMEOUT) as page:
            assert b"Load to come" in page.read()

        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)

        assert psutil.wait_procs(children, timeout=TIMEOUT)[1] == []


def kill_workers() -> None:
    """Kill the workers that this process has started, with their children."""
    for child in psutil.Process().children():
        if " worker " in " ".join(child.cmdline()):
            os.killpg(child.pid, signal.SIGKILL)


def flown(tower: Tower, records: Records, is_over: Callable[[], bool]) -> None:
    """Let the tower record departures until *is_over* is true."""
    while not is_over():
        tower.record_until(records.now_ms())
        time.sleep(0.05)


def test_each_hour_has_one_report_though_there_is_no_worker_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights = load_flights(SNOW_STORM)
    begins = midnight(SNOW_STORM)
    hours = hours_of(flights, begins)
    with (
        EmbeddedRedis() as server,
        closing(Records(server.url)) as records,
        Redis.from_url(server.url) as redis,
        DelayQ(Celery("example_project", broker=server.url_for("delayq+redis"))) as delayq,
    ):
        environment = {
            BROKER_URL_VARIABLE: server.url_for("delayq+redis"),
            LEDGER_URL_VARIABLE: server.url,
        }
        monkeypatch.setattr(publish, "delayq", delayq)
        with Services(environment, tmp_path) as first:
            first.start_worker("first", concurrency=2)
            wait_until(lambda: records.wait_for_worker(seconds=1), TIMEOUT, "the first worker")
            clock = CompressedClock(begins, round(records.now_ms()) + 3000, in_whole_hours(24))
            tower = Tower(flights, clock, records)
            ids = [tick_id(hour, clock) for hour in range(hours)]
            publish.publish_report(clock, hours)
            ticks = delayq.periodic.next(NAME, hours + 1)
            assert [f"{NAME}:{round(tick.timestamp() * 1000)}" for tick in ticks] == ids
            flown(tower, records, lambda: records.count_reports() >= 4)
            # The tower is silent, so due tasks wait, and the worker is killed meanwhile.
            while records.now_ms() < clock.real_ms(begins + 7 * HOUR):
                time.sleep(0.05)
            kill_workers()
        fired = publish.ticks_fired()
        assert 4 <= fired < hours
        # All ticks that were fired ahead have passed, and more ticks that nobody fires.
        missed_ms = clock.real_ms(begins + (fired + 4) * HOUR) + 2 * GRACE_MS
        flown(tower, records, lambda: records.now_ms() > missed_ms)
        assert publish.ticks_fired() == fired

        with Services(environment, tmp_path) as second:
            second.start_worker("second", concurrency=2)
            flown(tower, records, lambda: records.count_reports() >= hours)

        reports, runs = records.read_reports(), records.read_report_runs()
        # A task that ran when its worker was killed may have run again; it counts once.
        once = dict.fromkeys(runs, 1)
        fired = publish.ticks_fired()
        assert traffic_problems(reports, once, flights, clock, ticks=fired) == []
        assert [report.task_id for report in reports] == ids

        assert not records.add_report(replace(reports[5], flights=0)), "there is one of that hour"
        assert records.read_reports() == reports
        redis.hdel("example_project:reports", "5")
        wrong = traffic_problems(records.read_reports(), once, flights, clock, ticks=fired)
        assert "1 traffic reports are missing" in wrong
        assert any(f"flights: {979 - reports[5].flights} in the" in line for line in wrong)


def test_without_rabbitmq_the_demo_says_what_to_install() -> None:
    hidden = "import celery_delayq.embedded.rabbitmq as it; it._DEBIAN_FOLDER = 'no-such-folder'"
    run = "from example_project.demo import main; main(['--broker', 'rabbitmq'])"
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}; {run}"],
        cwd=CHECKOUT,
        env={**os.environ, "PATH": "no-such-folder"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 1
    assert "no rabbitmq-server was found; Debian, Ubuntu: apt install" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--day", "8 March"], "does not match the format"),
        (["--broker", "sqs"], "'sqs' is not one of 'redis', 'cluster', 'rabbitmq'"),
        (["--flights", "0"], "0 is not in the range"),
        (["--seconds-per-day", "nan"], "nan"),
        (["--seconds-per-day", "0"], "0.0 is not in the range"),
        (["--day", "2014-01-01"], "2014-01-01 is outside the data, which covers 2013"),
        (["--day", "2013-12-31", "--days", "2"], "2014-01-01 is outside the data"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # a picture's folder is made before some options are refused
    # In this process: a new process takes seconds for imports that it does not use.
    with pytest.raises(SystemExit) as ended:
        main(options)

    assert ended.value.code
    assert message in capsys.readouterr().err
