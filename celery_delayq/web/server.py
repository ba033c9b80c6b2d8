"""The pages alone: a server of their own, without Flower."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from celery import Celery
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RedirectHandler

from celery_delayq.errors import ConfigError
from celery_delayq.web.handler import DelayedPages
from celery_delayq.web.loader import alone_loader
from celery_delayq.web.request_checks import basic_credentials
from celery_delayq.web.site import Site


@dataclass(frozen=True)
class ServerOptions:
    """Options of the server.

    Parameters
    ----------
    host : str
        The address to listen on.
    port : int
        The port to listen on; 0 for a free one.
    url_prefix : str
        The path before those of the pages, such as ``/tools``.
    passwords : Mapping[str, str]
        Passwords by the names of users; empty for no login.
    read_only : bool
        Whether nobody may change anything.

    Raises
    ------
    ConfigError
        Others could reach the address without a login, or the prefix is no path.
    """

    host: str = "127.0.0.1"
    port: int = 5556
    url_prefix: str = ""
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    read_only: bool = False

    def __post_init__(self) -> None:
        if not self.passwords and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host!r}: others can reach this address, so it needs a login: give "
                "--auth-file, or listen on 127.0.0.1 behind a proxy"
            )
        if self.url_prefix and set(self.url_prefix) & set("?#%\\\"'<> "):
            raise ConfigError(
                f"url_prefix={self.url_prefix!r}: expected a path, such as /tools/queue"
            )

    @property
    def root(self) -> str:
        """The path before those of the pages: ``""`` or with a slash at its beginning only."""
        inner = self.url_prefix.strip("/")
        return f"/{inner}" if inner else ""


class AlonePages(DelayedPages):
    """Our pages on a server of their own."""

    def initialize(self, site: Site, options: ServerOptions) -> None:
        """Take what all requests share."""
        self._site, self._options = site, options

    def prepare(self) -> None:
        """Check the login.

        Raises
        ------
        HTTPError
            There is none, or the name of the host is not that of this machine.
        """
        passwords = self._options.passwords
        if passwords:
            user, password = basic_credentials(self.request)
            known = passwords.get(user, "")
            is_right = hmac.compare_digest(known.encode(), password.encode("utf-8", "replace"))
            if not (known and is_right):
                self.set_header("WWW-Authenticate", 'Basic realm="delayed tasks", charset="UTF-8"')
                raise HTTPError(401)
        elif self._site.rights.user_header is None and not _is_this_machine(self.request.host):
            # A page of another site could have its name resolved to this machine, and read ours.
            raise HTTPError(403, "Without a login only localhost is answered")

    async def get(self, rest: str | None = None) -> None:
        """Answer with a page."""
        await self.answer(rest)

    async def post(self, rest: str | None = None) -> None:
        """Make a change."""
        await self.change(rest)

    def site(self) -> Site:
        return self._site

    def base(self) -> str:
        return f"{self._options.root}/delayed"

    def user(self) -> str:
        header = self._site.rights.user_header
        if header is not None:
            return str(self.request.headers.get(header, ""))
        return basic_credentials(self.request)[0] if self._options.passwords else ""

    def read_only(self) -> bool:
        return self._options.read_only


class PageServer:
    """Serves the pages.

    Raises
    ------
    OSError
        The address is in use, or does not belong to this machine.
    """

    def __init__(self, app: Celery, options: ServerOptions) -> None:
        self._site = Site(app)
        root = options.root
        shared = {"site": self._site, "options": options}
        self._sockets = bind_sockets(options.port, options.host)
        self._application = Application(
            [
                (rf"{root}/delayed(?:/(.*))?", AlonePages, shared),
                (rf"{root}/?", RedirectHandler, {"url": f"{root}/delayed", "permanent": False}),
            ],
            template_loader=alone_loader(),
            template_path="templates",
            xsrf_cookies=True,
            xsrf_cookie_kwargs={"httponly": True, "samesite": "Strict"},
        )
        shown = f"[{options.host}]" if ":" in options.host else options.host
        port = self._sockets[0].getsockname()[1]
        #: The address of the first page.
        self.url = f"http://{shown}:{port}{root}/delayed"

    async def serve(self, stopping: asyncio.Event) -> None:
        """Serve until the event is set."""
        server = HTTPServer(self._application)
        server.add_sockets(self._sockets)
        await stopping.wait()
        server.stop()
        await server.close_all_connections()
        self._site.close()


def read_passwords(file: Path) -> Mapping[str, str]:
    """Return the passwords of a file by the names of users: a line ``user:password`` for each.

    Empty lines, and those that begin with ``#``, do not count.

    Raises
    ------
    ConfigError
        The file cannot be read, others may write to it, or a line has no user or no password.
    """
    try:
        text, mode = file.read_text("utf-8"), file.stat().st_mode
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"auth file {str(file)!r}: {exc}") from exc
    if mode & 0o002:
        raise ConfigError(f"auth file {str(file)!r}: anybody may write to it; chmod o-w it")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, password = line.partition(":")
        if not user or not password:
            # The line may have a password, so the error does not show it.
            raise ConfigError(f"auth file {str(file)!r}, line {number}: expected user:password")
        found[user] = password
    if not found:
        raise ConfigError(f"auth file {str(file)!r}: expected a line user:password")
    return found


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_this_machine(host: str) -> bool:
    return is_loopback(urlsplit(f"//{host}").hostname or "")
