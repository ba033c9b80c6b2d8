"""Changes to the prefork pool of a Celery worker."""

from celery_delayq.integration.pool import results, tasks
from celery_delayq.integration.replace import Replace

#: When a worker starts.
CHANGES = (
    Replace(
        target="celery.concurrency.asynpool:ResultHandler._flush_outqueue",
        by=results.ending_flush,
        why="a stopping worker waits for ever for the rest of a killed child's result",
    ),
    Replace(
        target="celery.concurrency.asynpool:ResultHandler._make_process_result",
        by=results.reading_all,
        why="the pipe of a child is read twice, and registered again, for each message from it; a "
        "lost connection forgets half a message, and the rest would be read as another one",
    ),
    Replace(
        target="celery.concurrency.asynpool:AsynPool.process_flush_queues",
        by=results.flushing_whole,
        why="what is left of a message when a child ends is read as another one",
    ),
    Replace(
        target="celery.concurrency.asynpool:Worker.on_loop_start",
        by=results.sending_readable,
        why="an exception that cannot be pickled and read again ends the worker",
    ),
    Replace(
        target="celery.concurrency.asynpool:AsynPool.on_partial_read",
        by=tasks.counting_children,
        why="a task whose arguments no child can unpickle ends one child after the other",
    ),
)
