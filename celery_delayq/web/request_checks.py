"""Checks a request that changes something: its origin, its token and its user. No I/O."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable
from urllib.parse import urlsplit

from tornado.httputil import HTTPServerRequest
from tornado.web import RequestHandler

from celery_delayq.web.query import Forbidden


def check_right_to_change(handler: RequestHandler, reason_against: Callable[[], str]) -> None:
    """Refuse a request whose user may change nothing.

    Each unsafe method calls this first, whatever the server checks itself: Flower 2.0 and 2.1
    check nothing, and 2.2 nothing without a login.

    Parameters
    ----------
    reason_against : Callable[[], str]
        Returns why the user may change nothing; ``""`` if the user may.

    Raises
    ------
    Forbidden
        The user may not, or a page of another site has sent the request.
    tornado.web.HTTPError
        The token does not go with the cookie.
    """
    _check_origin(handler.request)
    RequestHandler.check_xsrf_cookie(handler)
    if reason := reason_against():
        raise Forbidden(reason)


def _check_origin(request: HTTPServerRequest) -> None:
    """Refuse a request that a page of another site has sent.

    Raises
    ------
    Forbidden
        A browser says that the request comes from elsewhere.
    """
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if site != "same-origin":
        raise Forbidden("This request comes from a page of another site.")
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        raise Forbidden(
            "This request comes from a page of another site: the header Origin does not name "
            f"{request.host}. A proxy must pass the header Host on."
        )


def basic_credentials(request: HTTPServerRequest) -> tuple[str, str]:
    """Return user and password in the header for basic authentication; empty texts without one.

    Nothing is checked here.
    """
    kind, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return "", ""
    try:
        text = b64decode(credentials.strip()).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return "", ""
    user, _, password = text.partition(":")
    return user, password
