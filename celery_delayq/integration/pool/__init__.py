"""Changes to the prefork pool of a Celery worker."""

from celery_delayq.integration.pool import jobs, results, tasks
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
        by=results.sending_plainly,
        why="a child takes longer to pickle what it reports than to send it",
    ),
    Replace(
        target="celery.concurrency.asynpool:AsynPool._create_write_handlers",
        by=tasks.writing_at_once,
        why="a task is written to a free child only when the poller has said that there is room",
    ),
    Replace(
        target="celery.concurrency.asynpool:AsynPool.on_partial_read",
        by=tasks.counting_children,
        why="a task whose arguments no child can unpickle ends one child after the other",
    ),
    Replace(
        target="billiard.pool:threading",
        by=jobs.with_light_events,
        why="each task gets an event with a lock and a condition, and nobody waits for it",
    ),
)
