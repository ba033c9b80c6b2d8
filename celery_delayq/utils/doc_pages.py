"""Addresses of pages of the documentation: an installed package has none of them."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata

#: A page as texts name it, such as ``docs/accounts.md``.
_PAGE = re.compile(r"(?<![\w/])docs/(?=[\w-]+\.md)")


def with_addresses(text: str) -> str:
    """Return a text for people that has the address of each page that it names."""
    return _PAGE.sub(lambda _: _address(), text)


@cache
def _address() -> str:
    """Return the address of all pages, from the metadata of the package."""
    try:
        urls = metadata("celery-delayq").get_all("Project-URL") or ()
    except PackageNotFoundError:
        urls = ()
    found = dict(each.split(", ", 1) for each in urls)
    return f"{found.get('Documentation', 'docs')}/"
