"""The command line of the benchmarks."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import click
import redis
from rich.console import Console

from celery_delayq.errors import EmbeddedServerError
from celery_delayq.testing import ProcessFailed

from .bench import FULL, OURS, QUICK, STOCK_AGAIN, Bench, new_server
from .figures import fill, merge
from .measurements import load
from .model import BenchError, Measurement, measurements
from .processes import Pool
from .report import Run, machine_facts, show, write_json

load()
NAMES = [one.name for one in measurements()]

#: Errors whose text says enough.
EXPECTED = (BenchError, EmbeddedServerError, ProcessFailed, redis.RedisError)


def _measure(bench: Bench, one: Measurement, run: Run) -> None:
    try:
        run.figures.extend(one.run(bench))
    except Exception as error:  # the other measurements follow
        run.failures[one.name] = str(error) or repr(error)
        if not isinstance(error, EXPECTED):
            traceback.print_exc()


@click.command()
@click.option("--quick", is_flag=True, help="Smaller and fewer rounds: about three minutes.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(NAMES),
    metavar="NAME",
    help="Only this measurement; repeatable.",
)
@click.option("--rounds", type=click.IntRange(1), help="Rounds of the publish rows.")
@click.option("--load-rounds", type=click.IntRange(1), help="Rounds of the rows of due tasks.")
@click.option("--worker-rounds", type=click.IntRange(1), help="Of immediate tasks and of TERM.")
@click.option("--fast-rounds", type=click.IntRange(1), help="Of the groups for speed.")
@click.option(
    "--largest", type=click.IntRange(10_001), help="Entries at most of large-… and scans."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write JSON here.")
@click.option("--figures", is_flag=True, help="Put it into docs/figures.json and fill the pages.")
@click.option(
    "--pool",
    type=click.Choice([pool.name.lower() for pool in Pool]),
    default="prefork",
    show_default=True,
    help="Workers of the rows of due tasks.",
)
@click.option("--check", is_flag=True, help="Exit with 1 when a target is missed.")
@click.option("--calibrate", is_flag=True, help="Stock on both sides: shows the noise here.")
@click.option("--at-least-once", is_flag=True, help="Acks late on both sides.")
@click.option("--list", "listing", is_flag=True, help="Say what there is to measure.")
def main(
    quick: bool,
    only: tuple[str, ...],
    rounds: int | None,
    load_rounds: int | None,
    worker_rounds: int | None,
    fast_rounds: int | None,
    largest: int | None,
    json_path: Path | None,
    figures: bool,
    pool: str,
    check: bool,
    calibrate: bool,
    at_least_once: bool,
    listing: bool,
) -> None:
    """Measure stock Celery + Redis and this package in the same run, on the same Redis.

    The exit code is 1 when something could not be measured.
    """
    chosen = [one for one in measurements() if not only or one.name in only]
    console = Console(width=None if sys.stdout.isatty() else 120)
    if listing:
        for one in chosen:
            console.print(f"{one.name:18} {one.summary}", highlight=False)
        return
    if figures and (calibrate or quick):
        raise click.UsageError("--figures are those of a full run: not with --calibrate or --quick")
    # SIGTERM ends the server, the workers and the publishers too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    size = QUICK if quick else FULL
    size = replace(
        size,
        rounds=rounds or size.rounds,
        load_rounds=load_rounds or size.load_rounds,
        worker_rounds=worker_rounds or size.worker_rounds,
        fast_rounds=fast_rounds or size.fast_rounds,
    )
    if largest is not None:
        size = size.up_to(largest)
    messages = Console(stderr=True)
    began = time.monotonic()
    with new_server() as server, messages.status("starting") as status:

        def note(text: str) -> None:
            status.update(f"{time.monotonic() - began:4.0f} s  {text}")

        ours = STOCK_AGAIN if calibrate else OURS
        bench = Bench(server, size, note, ours, at_least_once, Pool[pool.upper()])
        run = Run(machine_facts(bench, quick))
        try:
            for one in chosen:
                _measure(bench, one, run)
                run.facts["seconds"] = round(time.monotonic() - began, 1)
                if figures:  # After each: a run that is stopped loses only its last measurement.
                    merge(run, shlex.join(["python", "-m", "tests.benchmarks", *sys.argv[1:]]))
                    fill()
        finally:
            shutil.rmtree(bench.folder, ignore_errors=True)
    show(run, console)
    if json_path:
        write_json(run, json_path)
    if run.failures or (check and not run.complete):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
