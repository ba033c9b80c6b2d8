"""Headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import urllib.request
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

from celery_delayq.testing import ManagedProcess, wait_until
from tests.support import TIMEOUT
from tests.support.skips import left_out

if TYPE_CHECKING:
    from typing_extensions import Self

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,900",
    "--remote-debugging-port=0",
)

#: The error of a script whose page has gone meanwhile.
_NAVIGATED = "navigated or closed"


class Browser:
    """One window of a browser with a new profile.

    Parameters
    ----------
    folder
        New folder for the profile and the log.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._profile = folder / "profile"
        self._process = ManagedProcess(
            [find_program(), *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            log_file=folder / "browser.log",
        )
        self._loop = asyncio.new_event_loop()
        self._window: WebSocketClientConnection | None = None
        self._numbers = count(1)
        self._errors: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._process.start()
            address = wait_until(self._find_window, TIMEOUT, lambda: self._process.log)
            assert address is not None
            self._window = self._loop.run_until_complete(self._connect(address))
            self._command("Runtime.enable")
            self._command("Log.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._window is not None:
            self._loop.run_until_complete(self._disconnect(self._window))
        self._loop.close()
        self._process.stop(timeout=TIMEOUT)

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        reply = self._command("Page.navigate", url=url)
        if "errorText" in reply:
            raise RuntimeError(f"{url} cannot be opened: {reply['errorText']}")
        self.wait_for("document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        """Give the window a size; one of less than 500 pixels is that of a phone."""
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def prefer(self, scheme: str) -> None:
        """Prefer a colour scheme: ``"dark"`` or ``"light"``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._command("Emulation.setEmulatedMedia", features=features)

    def send_headers(self, headers: Mapping[str, str]) -> None:
        """Send headers with each request from now on."""
        self._command("Network.enable")
        self._command("Network.setExtraHTTPHeaders", headers=dict(headers))

    def errors(self) -> list[str]:
        """Return what failed in pages since the last call: scripts, requests, refused parts."""
        self.evaluate("0")  # errors arrive before the answer
        found, self._errors = self._errors, []
        return found

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page, or that of its promise."""
        reply = self._command(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in reply:
            raise RuntimeError(f"{script}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""

        def value() -> Any:
            try:
                return self.evaluate(script)
            except RuntimeError as exc:
                if _NAVIGATED not in str(exc):
                    raise
                return None  # the next page comes

        return wait_until(value, TIMEOUT, lambda: f"{script} in:\n{self.text()}")

    def text(self) -> str:
        """Return the text of the page as a reader sees it."""
        return str(self.evaluate("document.body.innerText"))

    def rows(self, table: str) -> list[dict[str, str]]:
        """Return the rows of the table with this id, each by its lower-case headings."""
        # Not innerText: style sheets change it, for example to capitals in headings.
        cells = "[...row.cells].map(cell => cell.textContent.trim())"
        found = self.evaluate(
            f"[...document.querySelectorAll('#{table} thead tr, #{table} tbody tr')]"
            f".map(row => {cells})"
        )
        headings, *rows = found
        names = [heading.lower() for heading in headings]
        return [dict(zip(names, row, strict=False)) for row in rows]

    def screenshot(self, file: Path) -> None:
        """Save the window's contents as PNG."""
        file.write_bytes(base64.b64decode(self._command("Page.captureScreenshot")["data"]))

    def _find_window(self) -> str | None:
        port_file = self._profile / "DevToolsActivePort"
        if not self._process.running:
            raise RuntimeError(f"the browser has ended:\n{self._process.log}")
        if not port_file.exists() or not (lines := port_file.read_text().splitlines()):
            return None
        with urllib.request.urlopen(
            f"http://127.0.0.1:{lines[0]}/json/list", timeout=TIMEOUT
        ) as reply:
            targets = json.load(reply)
        pages = [target for target in targets if target["type"] == "page"]
        return str(pages[0]["webSocketDebuggerUrl"]) if pages else None

    async def _connect(self, address: str) -> WebSocketClientConnection:
        return await asyncio.wait_for(
            websocket_connect(address, max_message_size=100 * 1024 * 1024), TIMEOUT
        )

    async def _disconnect(self, window: WebSocketClientConnection) -> None:
        window.close()
        while await asyncio.wait_for(window.read_message(), TIMEOUT) is not None:
            pass

    def _command(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._loop.run_until_complete(
            asyncio.wait_for(self._ask(method, parameters), TIMEOUT)
        )

    def _note(self, event: dict[str, Any]) -> None:
        """Note an event that tells of an error."""
        values = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self._errors.append(str(values["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and values["entry"]["level"] == "error":
            self._errors.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")

    async def _ask(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        assert self._window is not None
        number = next(self._numbers)
        await self._window.write_message(
            json.dumps({"id": number, "method": method, "params": parameters})
        )
        while (text := await self._window.read_message()) is not None:
            message = json.loads(text)
            if message.get("id") != number:
                self._note(message)
                continue
            if "error" in message:
                raise RuntimeError(f"{method}: {message['error']}")
            reply: dict[str, Any] = message["result"]
            return reply
        raise RuntimeError(f"the browser has gone:\n{self._process.log}")


def find_program() -> str:
    """Return the browser's program; without one the test is skipped, or fails with CI=true."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    raise left_out(f"no browser on PATH ({', '.join(PROGRAMS)}): apt install chromium")
