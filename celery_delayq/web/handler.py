"""What the handlers of Flower's tab and of the pages alone have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from tornado.escape import xhtml_escape
from tornado.web import RequestHandler

from celery_delayq.errors import (
    BrokerUnavailable,
    CommandRefused,
    ConfigError,
    DelayQError,
    InvalidETA,
    InvalidFilter,
    NotSupported,
)
from celery_delayq.store.error_text import BROKER_ERRORS, describe_error
from celery_delayq.utils.text import spelled
from celery_delayq.web import changes
from celery_delayq.web.actions import FIELDS, TIME_FIELDS, UNCHANGED, fields_of_error
from celery_delayq.web.formatting import MAX_URL, Formatter, static_file
from celery_delayq.web.pages import PAGES, SEARCH_PAGES, Page
from celery_delayq.web.pages.health import CHECK_HINTS
from celery_delayq.web.pages.scheduled import STATES
from celery_delayq.web.query import Forbidden, NotFound, Query, quoted
from celery_delayq.web.questions import Question, ask, back_in, job_of
from celery_delayq.web.request_checks import check_right_to_change
from celery_delayq.web.site import Site

logger = logging.getLogger(__name__)

#: The header of an answer that is a part of a page, for our script.
FRAGMENT_HEADER = "X-Delayed-Fragment"

#: Headers of all pages. Frames of other sites must not show them, and names that others chose must
#: not run as scripts, even if a template fails to escape one.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

#: Errors of what a user has chosen or typed: the form is shown again.
_FORM_ERRORS = (ConfigError, InvalidETA, InvalidFilter)

#: Seconds for which the answer waits for a change. After that, its page shows the progress.
SHORT_JOB_SECONDS = 1.5

_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class DelayedPages(RequestHandler):
    """Pages below one path. A handler of a server adds who the user is.

    It comes before the server's own class of handlers among the bases.
    """

    #: Methods that change something.
    UNSAFE_METHODS = ("POST",)

    # -- what a server says

    def site(self) -> Site:
        """Return what all pages share."""
        raise NotImplementedError

    def base(self) -> str:
        """Return the path of the pages, without a slash at the end."""
        raise NotImplementedError

    def user(self) -> str:
        """Return the name of the user; ``""`` without a login."""
        raise NotImplementedError

    def read_only(self) -> bool:
        """Return whether the server allows no changes at all."""
        raise NotImplementedError

    # -- Tornado's hooks

    def set_default_headers(self) -> None:
        """Set the headers of our pages. Flower's own would let pages of other sites read them."""
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def decode_argument(self, value: Any, name: str | None = None) -> Any:  # noqa: ARG002
        """Return a part of the path, or None for None. Ids need not be UTF-8."""
        return None if value is None else value.decode("utf-8", "surrogateescape")

    async def answer(self, rest: str | None) -> None:
        """Answer a GET for the page with this path."""
        name, _, behind = (rest or "").partition("/")
        if name == "static":
            self._answer_file(behind)
            return
        await self._reporting_errors(self._answer_page, name or "overview", behind)

    async def change(self, rest: str | None) -> None:
        """Answer a POST: check rights, and ask for a confirmation or make the change."""
        await self._reporting_errors(self._answer_change, rest or "")

    # -- pages

    async def _answer_page(self, name: str, rest: str) -> None:
        page = PAGES.get(name)
        if page is None or (rest and not page.has_objects):
            raise NotFound(f"There is no page {name}{'/' if rest else ''}{rest}.")
        query = self._query(rest)
        query.check_fields([*page.fields, "fragment"])
        await self._show(name, page, query)

    async def _show(self, name: str, page: Page, query: Query, error: str = "") -> None:
        """Send a page, or only the part of it that changes; an *error* of a form comes first."""
        view = await self.site().run(page.read, self.site(), query)
        if wrong := getattr(view, "error", "") if name in SEARCH_PAGES else "":
            error = wrong
            self.set_status(HTTPStatus.BAD_REQUEST)
        formatter = self._formatter(getattr(view, "now", None) or datetime.now(timezone.utc))
        body = self.render_string(
            f"delayed-{name}.html",
            p=formatter,
            view=view,
            chosen={*self._query("").all("mark")},
            form=self._form_fields(name, query),
            reasons=UNCHANGED,
            page=name,
            states=STATES,
            filter_fields=page.filter_fields,
            hints=CHECK_HINTS,
        )
        if self.get_query_arguments("fragment"):
            self.set_header(FRAGMENT_HEADER, name)
            self.write(body)
            return
        self._frame(name, body, formatter, 0 if error else page.refresh_seconds, error)

    def _frame(
        self,
        name: str,
        body: bytes,
        formatter: Formatter,
        refresh_seconds: int = 0,
        error: str = "",
    ) -> None:
        on_rabbitmq = self.site().on_rabbitmq
        titles = {
            each: page.title
            for each, page in PAGES.items()
            if page.title and (page.on_rabbitmq or not on_rabbitmq)
        }
        self.render(
            "delayed-frame.html",
            p=formatter,
            body=body,
            error=error,
            page=name,
            titles=titles,
            title=titles.get(name, "Delayed"),
            refresh_seconds=refresh_seconds,
            address=self.request.uri,
        )

    def _answer_file(self, name: str) -> None:
        kind = _TYPES.get(name.rpartition(".")[2])
        if kind is None or "/" in name:
            self.send_error(404)
            return
        try:
            data, version = static_file(name)
        except FileNotFoundError:
            self.send_error(404)
            return
        self.set_header("Content-Type", kind)
        if self.get_query_argument("v", "") == version:
            self.set_header("Cache-Control", "public, max-age=31536000, immutable")
        self.write(data)

    # -- changes

    async def _answer_change(self, rest: str) -> None:
        check_right_to_change(self, self.reason_against)
        user = self.user()
        site, query = self.site(), self._query("")
        name, _, behind = rest.partition("/")
        if name == "stop":
            job = await site.run(PAGES["job"].read, site, self._query(behind))
            job.stopping.set()
            logger.info("User %s stops: %s", spelled(user), spelled(job.title))
        elif name == "change":
            try:
                question = await site.run(ask, site, query)
            except _FORM_ERRORS as exc:
                await self._answer_refused(query, exc)
                return
            if not query.text("confirmed"):
                self._ask(question)
                return
            try:
                make = await site.run(changes.prepare, site, query, question)
            except _FORM_ERRORS as exc:
                self._ask(question, str(exc))
                return
            job = job_of(question, user, changes.log_text(query, question))
            site.jobs.begin(job, make)
            await site.run(job.finished.wait, SHORT_JOB_SECONDS)
            if question.action.fields and job.error and not job.outcomes:
                self._ask(question, job.error)
                return
        else:
            raise NotFound(f"There is nothing to change at {rest}.")
        self.redirect(f"{self.base()}/job/{job.id}", status=HTTPStatus.SEE_OTHER)

    async def _answer_refused(self, query: Query, exc: DelayQError) -> None:
        """Show the page of a form again, with what was ticked and the error above it."""
        back = back_in(query)
        if back is None:
            raise exc
        self.set_status(HTTPStatus.BAD_REQUEST)
        fields = {name: [text] for name, text in back.fields.items()}
        again = Query(back.rest, fields, self.site().zone)
        await self._show(back.page, PAGES[back.page], again, str(exc))

    def _ask(self, question: Question, error: str = "") -> None:
        """Show a question; after an *error* with what was typed."""
        if error:
            self.set_status(HTTPStatus.BAD_REQUEST)
        formatter = self._formatter(datetime.now(timezone.utc))
        back = question.back
        query = Query(back.rest, {name: [text] for name, text in back.fields.items()})
        body = self.render_string(
            "delayed-confirm.html",
            p=formatter, view=question, error=error, fields=FIELDS, times=TIME_FIELDS,
            wrong=fields_of_error(error, question.action.fields),
            form=self._form_fields(back.page, query),
        )  # fmt: skip
        self._frame("confirm", body, formatter)

    def _form_fields(self, name: str, query: Query) -> Callable[[], str]:
        """Return a function for the fields of all forms: the token, and the page to return to."""
        values = {field: each for field, each in query.values.items() if field != "fragment"}
        text = urlencode(values, doseq=True, errors="surrogateescape")
        back = f"{name}/{quoted(query.rest)}?{text}"
        back = back if len(back) <= MAX_URL else name
        return lambda: (
            f'{self.xsrf_form_html()}<input type="hidden" name="back" value="{xhtml_escape(back)}">'
        )

    def reason_against(self) -> str:
        """Return why the user may change nothing; ``""`` if the user may."""
        if self.read_only():
            return "The server is read-only."
        return self.site().rights.reason_against(self.user(), self.request)

    # -- common

    def _query(self, rest: str) -> Query:
        values = {
            name: [value.decode("utf-8", "surrogateescape") for value in each]
            for name, each in self.request.arguments.items()
        }
        return Query(rest, values, self.site().zone)

    def _formatter(self, now: datetime) -> Formatter:
        return Formatter(self.base(), self.site().zone, now, self.user(), self.reason_against())

    async def _reporting_errors(self, answer: Callable[..., Any], *args: Any) -> None:
        try:
            await answer(*args)
        except Forbidden as exc:
            self._fail(HTTPStatus.FORBIDDEN, str(exc))
        except NotFound as exc:
            self._fail(HTTPStatus.NOT_FOUND, str(exc))
        except NotSupported as exc:
            self._fail(HTTPStatus.NOT_IMPLEMENTED, str(exc))
        except (CommandRefused, BrokerUnavailable) as exc:
            self._fail(HTTPStatus.SERVICE_UNAVAILABLE, describe_error(exc, self.site().app))
        except (DelayQError, *BROKER_ERRORS) as exc:
            is_input = isinstance(exc, ValueError)
            status = HTTPStatus.BAD_REQUEST if is_input else HTTPStatus.SERVICE_UNAVAILABLE
            self._fail(status, describe_error(exc, self.site().app))

    def _fail(self, status: HTTPStatus, text: str) -> None:
        self.set_status(status)
        formatter = self._formatter(datetime.now(timezone.utc))
        back = back_in(self._query(""))
        values: Mapping[str, Any] = {"status": status, "text": text, "back": back}
        body = self.render_string("delayed-error.html", p=formatter, view=values)
        if self.get_query_arguments("fragment"):
            self.set_header(FRAGMENT_HEADER, "error")
            self.write(body)
        else:
            self._frame("error", body, formatter)
