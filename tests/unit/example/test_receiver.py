"""The example's receiver: it trusts signatures only, and knows again what it has accepted."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from celery_delayq.webhook import sign
from example_project.deliveries import Attempt
from example_project.faults import RETRY_AFTER, Trouble, course_of
from example_project.plan import webhook_id
from example_project.receiver import LARGEST_BODY, Receiver, main
from example_project.settings import WEBHOOK_SECRET_VARIABLE
from tests.support import TIMEOUT

SECRET = "a secret of the tests"


class FakeRecords:
    """The books in memory."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.numbers: Counter[str] = Counter()
        self.delivered: set[str] = set()
        self.repaired = False

    def next_attempt(self, webhook_id: str) -> int:
        self.numbers[webhook_id] += 1
        return self.numbers[webhook_id]

    def is_delivered(self, webhook_id: str) -> bool:
        return webhook_id in self.delivered

    def add_delivery(self, webhook_id: str) -> bool:
        added = webhook_id not in self.delivered
        self.delivered.add(webhook_id)
        return added

    def is_receiver_repaired(self) -> bool:
        return self.repaired

    def now_ms(self) -> float:
        return 1.0

    def add_attempt(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)


class Sender:
    """Sends webhooks to a receiver that writes into `records`."""

    def __init__(self, port: int, records: FakeRecords) -> None:
        self._port = port
        self.records = records

    def send(self, flight: str, *, secret: str = SECRET) -> http.client.HTTPResponse:
        body = json.dumps({"kind": "check-in", "flight": flight, "departs": "soon"}).encode()
        id, now = webhook_id(f"check-in:{flight}"), int(time.time())
        signature = sign(secret, id, now, body)
        headers = {"Webhook-Id": id, "Webhook-Timestamp": str(now), "Webhook-Signature": signature}
        return self.request(body, headers)

    def request(self, body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)
        try:
            connection.request("POST", "/reminders", body, headers)
            return connection.getresponse()
        finally:
            connection.close()

    @property
    def results(self) -> list[str]:
        return [attempt.result for attempt in self.records.attempts]


@pytest.fixture
def sender() -> Iterator[Sender]:
    records = FakeRecords()
    with Receiver(("127.0.0.1", 0), SECRET, records) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield Sender(server.server_port, records)
        finally:
            server.shutdown()
            thread.join()


def flight_with(trouble: Trouble) -> str:
    flights = map(str, range(20_000))
    return next(f for f in flights if course_of(webhook_id(f"check-in:{f}")).trouble is trouble)


def test_a_webhook_is_accepted_once_and_known_again(sender: Sender) -> None:
    flight = flight_with(Trouble.NONE)

    assert [sender.send(flight).status for _ in range(3)] == [204, 204, 204]

    assert sender.results == ["accepted", "repeated", "repeated"]
    assert sender.records.delivered == {webhook_id(f"check-in:{flight}")}
    task_id = f"check-in:{flight}"
    accepted = Attempt(webhook_id(task_id), task_id, 204, "accepted", received_ms=1.0)
    assert sender.records.attempts[0] == accepted


def test_it_writes_down_how_many_come_at_once(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, is_delivered = threading.Barrier(2, timeout=TIMEOUT), sender.records.is_delivered

    def together(webhook_id: str) -> bool:
        both.wait()
        return is_delivered(webhook_id)

    monkeypatch.setattr(sender.records, "is_delivered", together)
    threads = [threading.Thread(target=sender.send, args=(flight,)) for flight in ("1", "2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(attempt.at_once for attempt in sender.records.attempts) == [1, 2]


def test_another_secret_is_refused_and_written_down(sender: Sender) -> None:
    assert sender.send(flight_with(Trouble.NONE), secret="another").status == 401

    assert sender.results == ["forged"]
    assert sender.records.delivered == set()


def test_it_fails_by_the_plan_and_accepts_then(sender: Sender) -> None:
    flight = flight_with(Trouble.FAILING)
    course = course_of(webhook_id(f"check-in:{flight}"))

    got = [sender.send(flight).status for _ in range(course.attempts)]

    assert got == [course.answer(number).status for number in range(1, course.attempts + 1)]
    assert sender.results == ["refused"] * (course.attempts - 1) + ["accepted"]


def test_a_busy_one_says_when_to_come_again(sender: Sender) -> None:
    answer = sender.send(flight_with(Trouble.BUSY))

    assert (answer.status, answer.headers["Retry-After"]) == (429, str(RETRY_AFTER))


def test_a_lost_answer_is_an_accepted_webhook_all_the_same(sender: Sender) -> None:
    flight = flight_with(Trouble.SILENT)

    with pytest.raises(http.client.RemoteDisconnected):
        sender.send(flight)

    assert sender.results == ["accepted"]
    assert sender.send(flight).status == 204
    assert sender.results == ["accepted", "repeated"]


def test_repairing_it_ends_all_but_what_is_gone(sender: Sender) -> None:
    down, gone = flight_with(Trouble.DOWN), flight_with(Trouble.GONE)
    assert sender.send(down).status == 503
    refused = sender.send(gone).status
    assert refused in (404, 410)

    sender.records.repaired = True

    assert (sender.send(down).status, sender.send(gone).status) == (204, refused)
    assert sender.results == ["refused", "refused", "accepted", "refused"]


@pytest.mark.parametrize(
    ("length", "status"), [("-1", 411), ("many", 411), (str(LARGEST_BODY + 1), 413)]
)
def test_a_body_without_a_length_that_makes_sense_is_not_read(
    sender: Sender, length: str, status: int
) -> None:
    assert sender.request(b"", {"Content-Length": length}).status == status

    assert sender.records.attempts == []


def test_without_a_secret_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WEBHOOK_SECRET_VARIABLE, raising=False)

    with pytest.raises(SystemExit, match=WEBHOOK_SECRET_VARIABLE):
        main()
