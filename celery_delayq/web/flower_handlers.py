"""The handlers of the tab in Flower: our pages, and Flower's pages of a task and of the broker."""

from __future__ import annotations

from typing import Any

from flower.utils.tasks import get_task_by_id
from flower.views import BaseHandler
from flower.views.broker import BrokerView
from flower.views.tasks import TaskView
from tornado.web import HTTPError, authenticated

from celery_delayq.errors import DelayQError
from celery_delayq.store.error_text import BROKER_ERRORS
from celery_delayq.web.handler import DelayedPages
from celery_delayq.web.pages import overview
from celery_delayq.web.query import quoted
from celery_delayq.web.request_checks import basic_credentials
from celery_delayq.web.site import Site

#: The attribute of Flower's application with its site.
_SITE = "_delayq_site"


def has_pages(application: Any) -> bool:
    """Return whether Flower's app has ``DelayQ(app)``."""
    return getattr(application.capp, "_delayq", None) is not None


def site_of(application: Any) -> Site:
    """Return the site of a Flower."""
    found: Site | None = getattr(application, _SITE, None)
    if found is None:
        found = Site(application.capp, application.options.format_task)
        setattr(application, _SITE, found)
    return found


class DelayedHandler(DelayedPages, BaseHandler):
    """Our pages in Flower."""

    application: Any

    def prepare(self) -> None:
        """Answer 404 for an app without ``DelayQ(app)``."""
        if not has_pages(self.application):
            raise HTTPError(404, "The app of this Flower has no DelayQ(app)")

    @authenticated
    async def get(self, rest: str | None = None) -> None:
        """Answer with a page."""
        await self.answer(rest)

    @authenticated
    async def post(self, rest: str | None = None) -> None:
        """Make a change."""
        await self.change(rest)

    def site(self) -> Site:
        return site_of(self.application)

    def base(self) -> str:
        return str(self.reverse_url("main")) + "delayed"

    def user(self) -> str:
        options, header = self.application.options, self.site().rights.user_header
        if header is not None:
            return str(self.request.headers.get(header, ""))
        if options.basic_auth:  # checked by Flower, which returns True for the user
            return basic_credentials(self.request)[0]
        return str(self.current_user or "") if options.auth else ""

    def read_only(self) -> bool:
        return bool(getattr(self.application.options, "read_only", False))


class TaskHandler(TaskView):
    """Flower's page of a task; that of a task which no worker has got is ours."""

    @authenticated
    async def get(self, task_id: str) -> None:
        """Answer with Flower's page, or lead to ours."""
        is_unknown = get_task_by_id(self.application.events, task_id) is None
        if is_unknown and has_pages(self.application) and await self._is_ours(task_id):
            self.redirect(f"{self.reverse_url('main')}delayed/task/{quoted(task_id)}")
            return
        answer: Any = super().get(task_id)
        if answer is not None:
            await answer

    async def _is_ours(self, id: str) -> bool:
        site = site_of(self.application)
        try:
            return (await site.run(lambda: site.delayq.why(id, ask_workers=False))).is_known
        except (DelayQError, *BROKER_ERRORS):
            return False


class BrokerHandler(BrokerView):
    """Flower's page of the broker, with what waits in the schedule."""

    @authenticated
    async def get(self) -> None:
        """Answer with the numbers of all queues."""
        queues = await self._queues()
        if queues is None:
            await super().get()
            return
        url = self.application.capp.connection().as_uri()
        self.render("broker.html", broker_url=url, queues=queues)

    async def _queues(self) -> list[dict[str, Any]] | None:
        """Return the numbers of queues as Flower shows them; None if Flower counts itself."""
        if not has_pages(self.application):
            return None
        site = site_of(self.application)
        try:
            if await site.run(lambda: site.delayq.session.on_rabbitmq):
                return None
            view = await site.run(overview.read_queues, site, self.get_active_queue_names())
        except (DelayQError, *BROKER_ERRORS):
            return None
        return [
            {
                "name": each.name,
                "messages": each.weight,
                "messages_ready": each.ready,
                "messages_unacknowledged": each.running,
            }
            for each in view
        ]
