"""What charts show, and their scales. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

from celery_delayq.utils.text import shortened

#: Possible lengths of a step in seconds.
STEP_SECONDS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86_400 * n for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)

#: The colours of layers, the largest first, and of the layer of all others. A style sheet, and
#: :mod:`~celery_delayq.charts.terminal`, have them.
COLOURS, OTHERS_COLOUR = ("s1", "s7", "s3", "s5", "s2", "s4"), "s6"

#: The name of the layer of all that have no layer of their own.
OTHERS_NAME = "all others"

#: Most characters of a name beside a row, and of the name of a layer.
MAX_NAME_CHARACTERS, MAX_LAYER_CHARACTERS = 32, 80

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))

#: Marks of an axis of durations, in ms.
_DURATION_MARKS = (
    *(1, 10, 100, 1000, 10_000),
    *(60_000, 600_000, 3_600_000, 36_000_000),
    *(86_400_000 * n for n in (4, 40, 400, 4000)),
)


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of durations in ms.

    Attributes
    ----------
    runs : int
        Number of runs with a known duration.
    early : int
        Number of negative durations: the clocks of workers and Redis differ.
    p50, p90, p99, max : int | None
        The durations that 50, 90, 99 and 100 per cent of the runs did not exceed; None without
        runs.
    """

    runs: int = 0
    early: int = 0
    p50: int | None = None
    p90: int | None = None
    p99: int | None = None
    max: int | None = None

    @classmethod
    def of(cls, durations: Collection[int]) -> Quantiles:
        """Return the quantiles of durations in ms."""
        found = sorted(durations)
        if not found:
            return cls()
        places = (math.ceil(len(found) * part) - 1 for part in (0.5, 0.9, 0.99, 1))
        return cls(len(found), sum(ms < 0 for ms in found), *(found[each] for each in places))


class Layer(NamedTuple):
    """One value for each step, and the colour of the values."""

    name: str
    style: str
    values: Sequence[float]


def layers_of(
    counts: Mapping[str, Sequence[float]],
    others: Sequence[float] = (),
    names: Iterable[str] | None = None,
) -> list[Layer]:
    """Return a layer for each name, and one for all others if there are any.

    Parameters
    ----------
    counts : Mapping[str, Sequence[float]]
        The values of each name, the largest first; at most as many names as :data:`COLOURS`.
    names : Iterable[str] | None
        All names in a lasting order, by which names have their colours in each chart; None for the
        order of *counts*.
    """
    in_order = counts if names is None else names
    places = {name: place for place, name in enumerate(in_order)}
    colours: dict[str, str] = {}
    for name in sorted(counts, key=lambda name: places.get(name, len(places))):
        own = COLOURS[places.get(name, len(places)) % len(COLOURS)]
        taken = {*colours.values()}
        colours[name] = next(each for each in (own, *COLOURS) if each not in taken)
    found = [
        Layer(short_name(name, MAX_LAYER_CHARACTERS), colours[name], values)
        for name, values in counts.items()
    ]
    return [*found, Layer(OTHERS_NAME, OTHERS_COLOUR, others)] if any(others) else found


def round_ticks(top: float) -> list[float]:
    """Return about five round whole numbers, from 0 to *top* or a little more."""
    rough = max(top / 5, 0.2)
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999), 1.0)
    return [step * n for n in range(math.ceil(top / step * 0.999) + 1)]


def duration(ms: float | None) -> str:
    """Return a duration with a unit: ``7 ms``, ``1.9 s``, ``31 min``, ``2.5 h``, ``3 d``."""
    if ms is None:
        return "-"
    size, unit = next(each for each in _UNITS if abs(ms) >= each[0] or each[0] == 1)
    value = ms / size
    return f"{value:,.0f} {unit}" if size == 1 or abs(value) >= 10 else f"{value:.2g} {unit}"


def stamp(at: datetime, zone: tzinfo = timezone.utc) -> str:
    """Return a point in time, without its offset."""
    there = at.astimezone(zone)
    return f"{there:%Y-%m-%d %H:%M}" if there.second == 0 else f"{there:%Y-%m-%d %H:%M:%S}"


def time_marks(
    begins: datetime, ends: datetime, most: int, zone: tzinfo = timezone.utc
) -> Iterator[tuple[datetime, str]]:
    """Yield about *most* marks of a time axis, at round times of a zone, with their texts."""
    length = (ends - begins).total_seconds()
    step = next((each for each in STEP_SECONDS if each * most >= length), STEP_SECONDS[-1])
    offset = begins.astimezone(zone).utcoffset() or timedelta()
    ahead = round(offset.total_seconds())
    first = math.ceil((begins.timestamp() + ahead) / step) * step - ahead
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86_400 else "%b %d"
    day = None
    for seconds in range(first, math.floor(ends.timestamp()) + 1, step):
        at = datetime.fromtimestamp(seconds, zone)
        # The first mark of a day shows the date.
        is_new = step < 86_400 and length > 86_400 * 0.75 and day not in (None, at.date())
        yield at, f"{at:%b %d}" if is_new else f"{at:{form}}"
        day = at.date()


def duration_scale(
    known: Iterable[int], begins: float, ends: float
) -> tuple[Sequence[int], Callable[[float], float]]:
    """Return the marks of a logarithmic scale for durations in ms, and the function from duration
    to position between *begins* and *ends*.
    """
    durations = [*known]
    least, most = min(durations, default=1), max(durations, default=1000)
    low = max((n for n, ms in enumerate(_DURATION_MARKS) if ms <= least), default=0)
    high = next((n for n, ms in enumerate(_DURATION_MARKS) if ms >= most), len(_DURATION_MARKS) - 1)
    marks = _DURATION_MARKS[low : max(high, low + 2) + 1]
    first = math.log10(marks[0])
    scale = (ends - begins) / (math.log10(marks[-1]) - first)

    def place(ms: float) -> float:
        # 0 has no logarithm: durations below the first mark are drawn at the first mark.
        return begins + (math.log10(min(max(ms, marks[0]), marks[-1])) - first) * scale

    return marks, place


def short_name(name: str, most: int = MAX_NAME_CHARACTERS) -> str:
    """Return a name, spelled; of a long one its end, which differs more than its beginning."""
    return shortened(name, most, keep_end=True)
