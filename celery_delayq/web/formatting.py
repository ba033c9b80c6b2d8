"""How templates show values: times, numbers, names that others chose, and links."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from tornado.escape import xhtml_escape

from celery_delayq.admin.load_ahead import LoadAhead
from celery_delayq.charts import svg
from celery_delayq.charts.scales import Layer, layers_of
from celery_delayq.model.envelope import parse_iso
from celery_delayq.utils.text import distance, shortened, span, spelled
from celery_delayq.web.query import bytes_of, local_text, quoted, unquoted

#: Characters of a text that a page shows, and of a cell of a table.
MAX_TEXT, MAX_CELL = 20_000, 160

#: A time as a field for a date and a time of day has it.
_LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?")

#: Most characters of an address that a server or a browser must accept.
MAX_URL = 4000


def escaped(text: str | bytes) -> str:
    """Return a text as HTML; characters that are not printable are spelled.

    Names may have bidirectional marks and escapes for terminals. Templates call this for all that
    they show: Tornado gives the text in UTF-8.
    """
    return xhtml_escape(spelled(text.decode() if isinstance(text, bytes) else text))


@lru_cache(maxsize=8)
def static_file(name: str) -> tuple[bytes, str]:
    """Return a file for browsers, and a text that changes with the file."""
    data = files(__package__).joinpath("static", name).read_bytes()
    return data, sha256(data).hexdigest()[:12]


class Formatter:
    """Functions for the templates of one answer.

    Parameters
    ----------
    base : str
        The path of all pages, such as ``/delayed``.
    zone : tzinfo
        The zone of times.
    now : datetime
        The time from which distances count.
    user : str
        The name of the user; ``""`` without a login.
    reason_against : str
        Why the user may change nothing; ``""`` if the user may.
    """

    def __init__(
        self, base: str, zone: tzinfo, now: datetime, user: str, reason_against: str
    ) -> None:
        self.base, self.zone, self.now = base, zone, now
        self.user, self.reason_against = user, reason_against

    @property
    def may_change(self) -> bool:
        """Whether the user may change something."""
        return not self.reason_against

    def url(self, page: str = "", rest: str = "", /, **fields: Any) -> str:
        """Return the path of a page, with the fields that are set."""
        parts = [self.base, *([page] if page else []), *([quoted(rest)] if rest else [])]
        given = {name: value for name, value in fields.items() if value not in (None, "")}
        query = urlencode({name: bytes_of(str(value)) for name, value in given.items()})
        return "/".join(parts) + (f"?{query}" if query else "")

    def short_url(self, page: str, /, **fields: Any) -> str:
        """Return the path of a page; ``""`` if no browser would send so long an address."""
        url = self.url(page, **fields)
        return url if len(url) <= MAX_URL else ""

    def link(
        self, text: str | None, page: str, rest: str = "", /, most: int = MAX_CELL, **fields: Any
    ) -> str:
        """Return the HTML of a link.

        Only the text if no address can name the page, or if it is too long for a browser.
        """
        shown, url = escaped(self.cut(text, most)), self.url(page, rest, **fields)
        names = [rest, *filter(None, map(str, fields.values()))]
        if text is None or len(url) > MAX_URL or any(unquoted(quoted(it)) != it for it in names):
            return shown
        return f'<a href="{escaped(url)}">{shown}</a>'

    def value(self, text: str | None) -> str:
        """Return the HTML of the value of a field, which a browser sends back as it is."""
        return xhtml_escape((text or "").encode("utf-8", "replace").decode())

    def static(self, name: str) -> str:
        """Return the path of a file for browsers."""
        return f"{self.base}/static/{name}?v={static_file(name)[1]}"

    def exact(self, time: datetime) -> str:
        """Return a time to the second, in the zone that each page names."""
        return local_text(time, self.zone).replace("T", " ")

    def exact_text(self, iso: str) -> str:
        """Return a time in ISO 8601 as :meth:`exact` shows it."""
        return self.exact(parse_iso(iso))

    @property
    def zone_text(self) -> str:
        """The zone of times, with its offset now unless it is UTC."""
        there = self.now.astimezone(self.zone)
        offset = f", UTC{there:%z}" if there.utcoffset() else ""
        return f"{there.tzname()}{offset}"

    @staticmethod
    def is_time(text: str | None) -> bool:
        """Return whether a field for a date and a time of day can show a text."""
        return not text or _LOCAL_TIME.fullmatch(text) is not None

    def away(self, time: datetime) -> str:
        """Return a distance in time, such as ``in 2h 5m``."""
        return distance((time - self.now).total_seconds())

    def time(self, time: datetime | None) -> str:
        """Return the HTML of a time: its distance, and exactly."""
        if time is None:
            return '<span class="dq-none">-</span>'
        iso = xhtml_escape(time.isoformat())
        return (
            f'<time datetime="{iso}" title="{iso}">{xhtml_escape(self.away(time))}'
            f" <small>{xhtml_escape(self.exact(time))}</small></time>"
        )

    def number(self, value: int | float | None) -> str:
        """Return a number with separators; a dash if it is unknown."""
        if value is None:
            return "-"
        return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"

    def count(self, value: int | None, page: str, rest: str = "", /, **fields: Any) -> str:
        """Return the HTML of a number of what a page lists: a link to the page unless it is 0."""
        text = self.number(value)
        return self.link(text, page, rest, **fields) if value else text

    def seconds(self, value: float | None) -> str:
        """Return a duration, such as ``2h 5m``; a dash if it is unknown."""
        return "-" if value is None else span(value)

    def cut(self, text: str | None, most: int = MAX_CELL) -> str:
        """Return the beginning of a text, spelled; a dash without a text."""
        return "-" if text is None else shortened(text, most)

    def lines(self, text: str | None, most: int = MAX_TEXT) -> str:
        """Return the HTML of a text with lines: of a long one its beginning and its end."""
        if text is None:
            return '<span class="dq-none">-</span>'
        if len(text) > most:
            cut = len(text) - most
            text = (
                f"{text[: most // 2]}\n… {cut:,} characters are not shown …\n{text[-most // 2 :]}"
            )
        return "\n".join(xhtml_escape(spelled(line)) for line in text.split("\n"))

    def ticks_chart(self, times: list[datetime], numbers: list[int]) -> str:
        """Return the SVG of the ticks of each hour."""
        label = f"Ticks of periodic entries by hour: {sum(numbers):,}"
        layer = Layer("ticks", "s1", numbers)
        return svg.bars(label, times, 3600, [layer], height=180, zone=self.zone)

    def load_chart(self, load: LoadAhead, step: str, names: Sequence[str]) -> str:
        """Return the SVG of the load to come."""
        label = f"Scheduled tasks by the {step} in which they are due: {load.total:,}"
        layers = self.layers(load, names)
        return svg.bars(label, load.times, load.step, layers, height=220, zone=self.zone)

    def layers(self, load: LoadAhead, names: Sequence[str]) -> list[Layer]:
        """Return the layers of the chart. Their colours follow the order of *names*."""
        return layers_of(load.counts, load.others, names)


#: What all templates know.
NAMESPACE: Mapping[str, Any] = {"escaped": escaped}
