"""``why``: why a task has not run, or how it ended."""

from __future__ import annotations

from rich.padding import Padding
from rich.text import Text

from celery_delayq.admin.why.reasons import Why
from celery_delayq.app import DelayQ
from celery_delayq.cli import options, screen
from celery_delayq.cli.command import command
from celery_delayq.cli.text import shown_id, stamp
from celery_delayq.utils.text import spelled


@command()
@options.id_argument
@options.queue_option
@options.json_option
def why(delayq: DelayQ, id: str, queue: str | None) -> bool:
    """Say why a task has not run, or how it ended.

    The first line has its state, and then come the reasons, of which the first counts most. If
    nothing but a worker is missing, workers are asked for a second. Exits with 1 when nothing is
    known of the id.

    \b
    Examples:
      celery -A shop delayq why 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq why mail-7 --json | jq -r '.reasons[0].kind'
    """
    answer = delayq.why(id, queue=queue)
    if screen.is_json():
        screen.print_json(answer.as_dict())
    else:
        for each in (answer, *answer.others):
            _print(each)
    if not answer.is_known:
        screen.note_unknown_queue(delayq, queue, stderr=True)
    return answer.is_known


def _print(answer: Why) -> None:
    output = screen.console()
    names = [("task", answer.task), ("queue", answer.queue)]
    about = ", ".join(f"{noun} {spelled(name)}" for noun, name in names if name)
    head = Text(shown_id(answer.id), "bold").append(f": {answer.state}", "default")
    output.print(head.append(f"; {about}" if about else "", "default"))
    for reason in answer.reasons:
        output.print(Padding(Text(reason.sentence(stamp)), (0, 0, 0, 2), expand=False))
