"""An HTTP server that receives the webhooks, and sometimes fails.

``python -m example_project.receiver`` starts it at the URL in the environment.

It does what any receiver should do: it checks the signature of a request, and recognizes by its id
a webhook that it has accepted before. `faults` has the failures.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import Literal, NoReturn
from urllib.parse import urlsplit

from celery_delayq.webhook import (
    InvalidSignature,
    verify,
)
from example_project.deliveries import Attempt
from example_project.faults import ACCEPTED, Answer, course_of
from example_project.records import Records
from example_project.settings import WEBHOOK_SECRET_VARIABLE, webhook_secret, webhook_url

LARGEST_BODY = 65_536

#: Most seconds that a sender may take for its request.
REQUEST_TIMEOUT_S = 30.0


class Receiver(ThreadingHTTPServer):
    """The server; it records each request in `records`."""

    # Many reminders are due at the same moment.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], secret: str, records: Records) -> None:
        super().__init__(address, Handler)
        self.secret = secret
        self.records = records
        self._lock = threading.Lock()
        self._open = 0

    @contextmanager
    def handling(self) -> Iterator[int]:
        """Yield the number of webhooks that are being handled, with this one."""
        with self._lock:
            self._open += 1
            at_once = self._open
        try:
            yield at_once
        finally:
            with self._lock:
                self._open -= 1


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Receiver
    timeout = REQUEST_TIMEOUT_S

    def do_POST(self) -> None:
        """Receive a webhook."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST_BODY:
            self._answer(Answer(413 if length.isdecimal() else 411))
            return
        body = self.rfile.read(int(length))
        try:
            webhook_id = verify(self.server.secret, dict(self.headers.items()), body)
        except InvalidSignature as error:
            self.log_error("%s", error)
            self._write_down("", "", Answer(401), "forged")
            self._answer(Answer(401))
            return
        payload = json.loads(body)  # signed, so a reminder has sent it
        # Until the answer is sent: then the next webhook may come.
        with self.server.handling() as at_once:
            answer = self._take(webhook_id, f"{payload['kind']}:{payload['flight']}", at_once)
        self._answer(answer)

    def _take(self, webhook_id: str, task_id: str, at_once: int) -> Answer:
        """Accept a webhook, recognize it, or refuse it."""
        records = self.server.records
        number = records.next_attempt(webhook_id)
        answer = course_of(webhook_id).answer(number, repaired=records.is_receiver_repaired())
        result: Literal["accepted", "repeated", "refused"] = "refused"
        if records.is_delivered(webhook_id):
            answer, result = ACCEPTED, "repeated"
        elif answer.accepted:
            # In one step, since two requests may come at the same time.
            result = "accepted" if records.add_delivery(webhook_id) else "repeated"
        self._write_down(webhook_id, task_id, answer, result, at_once)
        return answer

    def _write_down(
        self,
        webhook_id: str,
        task_id: str,
        answer: Answer,
        result: Literal["accepted", "repeated", "refused", "forged"],
        at_once: int = 0,
    ) -> None:
        records, status = self.server.records, answer.status
        now_ms = records.now_ms()
        records.add_attempt(Attempt(webhook_id, task_id, status, result, now_ms, at_once))

    def _answer(self, answer: Answer) -> None:
        if answer.status is None:
            self.log_error("the answer is lost")
            return
        self.send_response(answer.status)
        if answer.retry_after is not None:
            self.send_header("Retry-After", str(answer.retry_after))
        self.send_header("Content-Length", "0")
        self.end_headers()


def main() -> None:
    """Serve until SIGTERM."""
    secret = webhook_secret()
    if secret is None:
        sys.exit(f"{WEBHOOK_SECRET_VARIABLE} is not set: nothing that comes could be trusted")
    signal.signal(signal.SIGTERM, _leave)
    url = urlsplit(webhook_url())
    address = (url.hostname or "127.0.0.1", url.port or 80)
    with closing(Records()) as records, Receiver(address, secret, records) as server:
        server.serve_forever()


def _leave(*_: int | FrameType | None) -> NoReturn:
    raise SystemExit


if __name__ == "__main__":
    main()
