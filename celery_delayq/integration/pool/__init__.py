"""Changes to the pool of a Celery worker."""

from celery_delayq.integration.pool import results, tasks
from celery_delayq.integration.replace import Promise, Replace

#: Made when a worker starts.
CHANGES = (
    Replace(
        target="celery.concurrency.asynpool:ResultHandler._flush_outqueue",
        by=results.end_flush,
        without="A stopping worker waits for ever for the rest of a killed child's result.",
        promise=Promise.NO_HANGING,
        upstream="celery: close the worker's end of a pipe when its child has ended.",
    ),
    Replace(
        target="celery.concurrency.asynpool:ResultHandler._make_process_result",
        by=results.read_all_messages,
        without="After a lost connection Celery forgets the first half of a child's message, and "
        "reads the rest as another message.",
        promise=Promise.AT_LEAST_ONCE,
        upstream="celery: keep what was read of a message with its child, not in a generator of "
        "the event loop.",
    ),
    Replace(
        target="celery.concurrency.asynpool:AsynPool.process_flush_queues",
        by=results.flush_whole_messages,
        without="When a child ends, Celery reads the rest of its last message as another message.",
        promise=Promise.AT_LEAST_ONCE,
        upstream="celery: as for `ResultHandler._make_process_result`.",
    ),
    Replace(
        target="celery.concurrency.asynpool:Worker.on_loop_start",
        by=results.send_readable_failures,
        without="An exception that cannot be pickled and unpickled ends the worker.",
        promise=Promise.NO_HANGING,
        upstream="billiard: where a report cannot be read, take it for a failure of its task.",
    ),
    Replace(
        target="celery.concurrency.asynpool:AsynPool.on_partial_read",
        by=tasks.count_lost_children,
        without="A task whose arguments no child can unpickle ends one child after the other.",
        promise=Promise.LIMITED_DELIVERIES,
        upstream="celery: count the children that have ended of a job, and report it as "
        "`WorkerLostError` after a few.",
    ),
)
