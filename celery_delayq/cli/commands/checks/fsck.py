"""``fsck``: find and repair inconsistencies in Redis."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from celery_delayq.admin.findings import KINDS, Finding, Report
from celery_delayq.admin.repair import check
from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command
from celery_delayq.cli.options import flag, json_option, name_option
from celery_delayq.cli.text import number_of
from celery_delayq.settings import Settings
from celery_delayq.utils.text import spelled


@command()
@flag("--repair", help="Repair what is found.")
@name_option("--queue", metavar="QUEUE", help="Check only this queue.")
@json_option
def fsck(delayq: DelayQ, repair: bool, queue: str | None) -> bool:
    """Find inconsistencies in Redis, and repair them.

    These are entries without a due time, messages that would never be delivered, queues that no
    dispatcher knows, and so on. Workers and producers may go on; a repair may be interrupted and
    repeated. Exits with 1 when a finding is left.

    \b
    Examples:
      celery -A shop delayq fsck
      celery -A shop delayq fsck --repair
      celery -A shop delayq fsck --queue mail --json | jq .findings
    """
    settings = Settings.from_options(delayq.app.conf.broker_transport_options)
    report = Report()
    with screen.progress_bar(description="repair" if repair else "check") as bar:
        for report in check(delayq.session.stores, settings, queue=queue, repair=repair):
            bar(report.total, report.done)
    screen.check_queue(delayq, queue, report.queues)
    if screen.is_json():
        screen.print_json(report.as_dict())
    else:
        output = screen.console()
        if report.findings:
            output.print(_table(report, screen.gap_of(output)))
        for note in report.notes:
            output.print(Text(spelled(note)))
        output.print(_summary(report, repair=repair))
    return not report.unrepaired


def _table(report: Report, gap: str = "\n") -> Table:
    table = screen.new_table("queue", "found", "repaired", "what", title="Findings")
    if gap == "\n":
        table.show_lines = True
        table.columns[0].max_width = 20  # an id fits beside it at 80 columns
    for finding in report.findings:
        table.add_row(
            Text(spelled(finding.queue)),
            f"{finding.found:,}",
            f"{finding.repaired:,}",
            _what(finding, gap),
        )
    return table


def _what(finding: Finding, gap: str) -> Text:
    """Return the problem, its possible causes, its repair, and some ids."""
    kind = KINDS[finding.kind]
    text = Text(kind.what)
    text.append(f"{gap}cause: {', or '.join(cause.value for cause in kind.causes)}")
    text.append(f"{gap}repair: {kind.repairing}")
    more = ", …" if finding.found > len(finding.examples) else ""
    return text.append(f"{gap}{', '.join(map(spelled, finding.examples))}{more}", style="dim")


def _summary(report: Report, *, repair: bool) -> str:
    queues = number_of(len(report.queues), "queue", "queues")
    where = f"{queues}, {number_of(report.done, 'member', 'members')} of keys looked at"
    if not report.found:
        return f"{where}: nothing wrong"
    found = f"{where}: {number_of(report.found, 'finding', 'findings')}"
    return f"{found}, {report.repaired:,} repaired" if repair else f"{found}; see --repair"
