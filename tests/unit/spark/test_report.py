"""What a report says before Spark is started, and its page."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("pyspark")

from rich.cells import cell_len

from celery_delayq.charts.scales import Quantiles, duration, round_ticks
from celery_delayq.spark.report import page
from celery_delayq.spark.report.figures import (
    AttemptCount,
    Figures,
    Load,
    LoadAhead,
    Reason,
    RunReport,
    Step,
    step_for,
)
from celery_delayq.spark.report.terminal import show

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")

NOON = datetime(2026, 5, 17, 12, tzinfo=timezone.utc)
HOSTILE = "</title><img src=x onerror=alert(1)>'\"&\x1b"


def test_a_step_is_the_shortest_of_which_there_are_few_enough() -> None:
    assert [step_for(seconds, 90) for seconds in (0, 90, 91, 86_400, 10**12)] == [
        1, 1, 2, 1800, 364 * 86_400
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ms", "told"),
    [(None, "-"), (0, "0 ms"), (-12, "-12 ms"), (999, "999 ms"), (1900, "1.9 s"), (60_000, "1 min"),
     (5_400_000, "1.5 h"), (86_400_000 * 14, "14 d")],
)  # fmt: skip
def test_durations_are_reported_in_their_unit(ms: int | None, told: str) -> None:
    assert duration(ms) == told


@pytest.mark.parametrize("top", [1, 3, 7, 10, 99, 101, 12_345])
def test_an_axis_reaches_its_highest_value_by_few_whole_steps(top: int) -> None:
    marks = round_ticks(top)

    assert marks[-1] >= top * 0.99
    assert len(marks) <= 7
    assert all(mark == int(mark) for mark in marks)


# -- the page


class Reader(HTMLParser):
    """Takes pictures and texts from a page, and sees to it that what opens is closed."""

    OPEN = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.attributes: set[str] = set()
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in self.OPEN:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(" ".join(data.split()))


def made_up() -> RunReport:
    quantiles = Quantiles(3, 1, -2, 40, 90_000, 7_200_000)
    figures = Figures(
        3, 2, 1, failure_rate=1 / 3, per_minute=1.5, peak_minute=2, lateness=quantiles
    )
    steps = [Step(NOON + timedelta(minutes=n), n, 3 - n, 3 - 2 * n, n - 1) for n in range(4)]
    loads = [
        Load(HOSTILE if n % 3 else "plain", f"task {n}", "due", NOON + timedelta(hours=n), n + 1)
        for n in range(24)
    ]
    return RunReport(
        source=HOSTILE,
        filters={"task": HOSTILE},
        first=NOON,
        last=NOON + timedelta(minutes=4),
        total=figures,
        tasks={HOSTILE: figures, "none late": Figures(1)},
        queues={HOSTILE: figures},
        hours={NOON: figures},
        attempts=(AttemptCount(HOSTILE, 1, 7), AttemptCount("b", 12, 2)),
        reasons=(Reason(HOSTILE, "FAILURE", HOSTILE, 1, NOON),),
        step=60,
        timeline=(*steps,),
        ahead=LoadAhead(NOON, NOON, NOON + timedelta(days=1), 3600, (*loads,)),
    )


@pytest.mark.parametrize("told", [made_up(), RunReport("history"), RunReport("s3a://archive")])
def test_a_page_is_whole_and_needs_nothing_from_elsewhere(told: RunReport) -> None:
    text = page(told, HOSTILE)

    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.stack == []
    assert not reader.tags & {"script", "img", "link", "iframe"}
    assert not {name for name in reader.attributes if name.startswith("on")} | (
        reader.attributes & {"src", "href"}
    )
    assert "http" not in text.replace("http-equiv", "")
    assert HOSTILE.replace("\x1b", r"\x1b") in reader.texts


def test_all_pictures_say_what_is_to_be_seen() -> None:
    parts = page(made_up()).split("<svg")[1:]

    pictures = [ET.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>") for part in parts]

    assert [each.attrib["aria-label"].split(" ")[0] for each in pictures] == [
        "Runs", "Runs", "Lateness", "How", "Lateness", "Lateness", "Runs", "Tasks", "Tasks"
    ]  # fmt: skip
    assert {each.attrib["role"] for each in pictures} == {"img"}


def test_what_is_reported_is_on_the_page() -> None:
    reader = Reader()
    reader.feed(page(made_up()))

    for text in ("-2 ms", "1.5 min", "2 h", "33.3 %", "10+", "task 23", "300"):
        assert text in reader.texts, text


# -- on a terminal


@pytest.mark.parametrize("columns", [80, 200])
def test_tables_fit_a_terminal_and_leave_nothing_out(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lateness = Quantiles(1_234_567, 1, 59_400, 119_000, 7_140_000, 345_600_000)
    figures = Figures(
        1_234_567, 1, 34_567, 45_678, failure_rate=0.1234, per_minute=12_345.6, peak_minute=98_765,
        lateness=lateness,
    )  # fmt: skip
    name = "shop.invoices.monthly.send_statement"
    told = replace(
        made_up(), total=figures, tasks={name: figures, HOSTILE: figures}, hours={NOON: figures}
    )

    show(told)

    text = capsys.readouterr().out
    tables = text.partition("Note: ")[0]
    assert "…" not in text
    assert max(map(cell_len, tables.splitlines())) <= columns
    assert "\x1b" not in text
    words = tables.split()
    for figure in ("1,234,567", "12,346", "98,765", "34,567", "45,678", "12.3", "59", "4"):
        assert figure in words, figure
    assert "2026-05-17 12:00" in tables
