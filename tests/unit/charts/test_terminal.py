"""Charts in a terminal: they fit, and show what there is, in blocks and in ASCII."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from dateutil.tz import gettz

from celery_delayq.charts.scales import Layer, Quantiles, layers_of
from celery_delayq.charts.terminal import Area, bars, group, spans, sparklines

NOON = datetime(2026, 5, 17, 12, tzinfo=timezone.utc)
WIDTHS = (1, 9, 20, 25, 26, 33, 35, 40, 79, 80, 200)

#: Columns from which a chart fits its width: below, its axes alone may need more.
LEAST_WIDTH = 20


def times(number: int) -> list[datetime]:
    return [NOON + timedelta(minutes=n) for n in range(number)]


def bar_cells(lines: list[str]) -> list[str]:
    """Return the cells of each column, from the bottom to the top."""
    rows = [line[line.index("|") + 1 :] for line in lines if "|" in line]
    width = max(map(len, rows))
    return ["".join(row.ljust(width)[n] for row in reversed(rows)).rstrip() for n in range(width)]


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("number", [1, 30, 60])
def test_charts_fit_their_width(width: int, number: int, ascii_only: bool) -> None:
    area = Area(width, 4, ascii_only)
    for top in (0, 1, 7, 1_000_000):
        layers = layers_of({"mail": [top] * number}, [1] * number)
        for lines in (
            bars(times(number), 60, layers, area),
            spans(times(number), 60, [[top, -5]] * number, area),
        ):
            if width >= LEAST_WIDTH:
                assert max(line.cell_len for line in lines) <= width
            if ascii_only:
                assert all(line.plain.isascii() for line in lines)
    [line] = sparklines([Layer("mail", "s1", [3.0] * number)], area)
    assert line.cell_len <= width


def test_a_bar_is_as_high_as_its_number() -> None:
    layers = layers_of({"mail": [0, 1, 8], "bills": [0, 3, 0]})

    lines = [each.plain for each in bars(times(3), 60, layers, Area(11, 4, True))]

    assert lines[0].startswith("8 |")
    heights = [len(cells) for cells in bar_cells(lines)]
    assert heights == [0, 0, 2, 2, 4, 4]


def test_a_wider_axis_of_joined_steps_leaves_no_bar_out() -> None:
    """Joined steps need more digits, and these leave less room for bars."""
    for width in range(LEAST_WIDTH, 80):
        layers = layers_of({"mail": [9] * 60})
        lines = [each.plain for each in bars(times(60), 60, layers, Area(width, 1, True))]
        assert max(map(len, lines)) <= width
        assert all(bar_cells(lines)), width


def test_few_tasks_beside_many_can_be_seen() -> None:
    [line] = sparklines([Layer("mail", "s1", [1, 0, 1_000_000])], Area(3))

    assert line.plain == "▁ █"


def test_lines_have_one_scale_after_steps_are_joined() -> None:
    layers = layers_of({"even": [4] * 8, "peak": [0, 0, 0, 8, 0, 0, 0, 0]})

    lines = [line.plain for line in sparklines(layers, Area(4))]

    assert lines == ["████", " █  "]


def test_steps_are_joined_where_they_do_not_fit() -> None:
    assert group([1, 2, 3, 4, 5], 3, sum) == ([3, 7, 5], 2)
    assert group([1, 2], 3, sum) == ([1, 2], 1)
    assert group(list[float](), 3, sum) == ([], 1)
    lines = bars(times(60), 60, layers_of({"mail": [1] * 60}), Area(24, 4, True))
    assert lines[0].plain.split()[0] == "3"  # three minutes in a column


def test_the_axis_has_the_times_of_the_zone() -> None:
    zone = gettz("Asia/Tokyo")
    assert zone is not None

    line = bars(times(60), 60, [], Area(70, 2, zone=zone))[-1].plain

    assert line.split()[:2] == ["21:00", "21:15"]


def test_durations_reach_from_the_median_to_the_99th_percentile() -> None:
    lines = spans(times(2), 60, [[], [10] * 50 + [100] * 45 + [10_000] * 5], Area(12, 4, True))
    cells = bar_cells([line.plain for line in lines])

    assert cells[0] == ""
    assert "##::" in cells[-1] or "##::" in "".join(cells)


@pytest.mark.parametrize("number", [1, 2, 50, 99, 100, 101, 1000])
def test_quantiles_are_values_that_so_many_did_not_exceed(number: int) -> None:
    durations = [*range(number)][::-1]

    found = Quantiles.of(durations)

    assert (found.runs, found.early, found.max) == (number, 0, number - 1)
    for part, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        assert value is not None
        assert sum(ms <= value for ms in durations) >= part * number
        assert sum(ms < value for ms in durations) < part * number
    assert Quantiles.of([]) == Quantiles()
    assert Quantiles.of([-3, 5]).early == 1
