"""The Celery app of the pipeline. It keeps a history, from which the report is made."""

from __future__ import annotations

from celery import Celery
from celery.utils.log import get_task_logger

from celery_delayq import DelayQ
from example_project.settings import broker_url

logger = get_task_logger(__name__)

app = Celery("example_project.spark", broker=broker_url())
app.conf.update(
    task_ignore_result=True,
    broker_transport_options={"delayq": {"history": 100_000}},
)
delayq = DelayQ(app, at_least_once=True)


@app.task(name="flights.remind")
def remind(carrier: str, number: int, origin: str, destination: str, departs: str) -> None:
    """Call the passengers of a flight, which departs at that time of New York, to the gate."""
    logger.info("%s %s from %s to %s departs at %s", carrier, number, origin, destination, departs)
