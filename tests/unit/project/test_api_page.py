"""The page of the public API, and its docstrings."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from tests.support import api_page


def test_the_page_lists_what_the_code_offers() -> None:
    assert api_page.PAGE.read_text("utf-8") == api_page.page(), (
        "run: python -m tests.support.api_page"
    )


@pytest.mark.parametrize("module", api_page.MODULES)
def test_every_public_name_says_what_it_is(module: str) -> None:
    silent = [
        name
        for name, value in api_page.names_of(import_module(module))
        if (inspect.isclass(value) or inspect.isroutine(value)) and not inspect.getdoc(value)
    ]
    assert silent == []
