"""Changes to how a Celery worker ends a task, or fails to begin a task."""

from celery_delayq.integration.endings import not_begun, result_backend, settling
from celery_delayq.integration.replace import Promise, Replace

_WITHOUT = (
    "While the result backend is away, its errors decide whether the message is acknowledged."
)

#: Made when a worker starts.
CHANGES = (
    Replace(
        target="worker._process_task",
        by=not_begun.give_up_on_error,
        without="If the pool refuses a request, Celery keeps the place of the request in the pool, "
        "ends the worker, or loses the end of another task.",
        promise=Promise.AT_LEAST_ONCE,
        upstream="celery: have `WorkController._process_task` release the semaphore for any "
        "exception, and reject the request.",
    ),
    Replace(
        target="celery.worker.consumer:Consumer._limit_move_to_pool",
        by=not_begun.keep_other_requests,
        without="An error while one message is handled loses a task that waits for its rate limit.",
        promise=Promise.AT_LEAST_ONCE,
    ),
    Replace(
        target="celery.worker.consumer:Consumer.create_task_handler",
        by=settling.settle_at_once,
        without="An error in a callback of the event loop drops the acknowledgements that wait for "
        "the same turn: their messages stay leased until the worker ends.",
        promise=Promise.AT_LEAST_ONCE,
        upstream="kombu: have `Hub` keep the other callbacks of a turn when one raises an error.",
    ),
    *(
        Replace(
            target=f"celery.backends.base:Backend.{name}",
            by=result_backend.log_backend_errors,
            without=_WITHOUT,
            promise=Promise.RESULT_BACKEND_AWAY,
        )
        for name in ("mark_as_retry", "mark_as_failure")
    ),
    Replace(
        target="celery.backends.base:Backend.mark_as_revoked",
        by=result_backend.log_revoke_errors,
        without=_WITHOUT,
        promise=Promise.RESULT_BACKEND_AWAY,
    ),
    *(
        Replace(
            target=target,
            by=result_backend.start_despite_error,
            without="A task does not run if the result backend cannot store its start.",
            promise=Promise.RESULT_BACKEND_AWAY,
        )
        for target in (
            "celery.backends.base:Backend.store_result",
            "celery.backends.rpc:RPCBackend.store_result",
        )
    ),
    Replace(
        target="celery.app.trace:AsyncResult",
        by=result_backend.make_state_unknown,
        without="While the result backend is away, Celery cannot know whether a redelivered task "
        "has succeeded, and drops it.",
        promise=Promise.RESULT_BACKEND_AWAY,
        upstream="celery: catch all errors of the backend in `trace_task` where it asks whether a "
        "task has succeeded.",
    ),
)
