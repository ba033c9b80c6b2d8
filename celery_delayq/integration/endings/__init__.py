"""Changes to how a Celery worker ends a task, or fails to begin a task."""

from celery_delayq.integration.endings import not_begun, result_backend
from celery_delayq.integration.replace import Promise, Replace

_WHY = "a result backend that is away decides what becomes of the message"

#: Made when a worker starts.
CHANGES = (
    Replace(
        target="worker._process_task",
        by=not_begun.giving_back,
        why="a request that the pool does not take keeps its place there, ends the worker, or has "
        "the end of another task forgotten",
        promise=Promise.AT_LEAST_ONCE,
        upstream="celery: have `WorkController._process_task` release the semaphore for any "
        "exception, and reject the request.",
    ),
    Replace(
        target="celery.worker.consumer:Consumer._limit_move_to_pool",
        by=not_begun.keeping_others,
        why="an error while one message is handled has a task that waited for its turn forgotten",
        promise=Promise.AT_LEAST_ONCE,
    ),
    *(
        Replace(
            target=f"celery.backends.base:Backend.{name}",
            by=result_backend.logging_errors,
            why=_WHY,
            promise=Promise.RESULT_BACKEND_AWAY,
        )
        for name in ("mark_as_retry", "mark_as_failure")
    ),
    Replace(
        target="celery.backends.base:Backend.mark_as_revoked",
        by=result_backend.logging_errors_of_requests,
        why=_WHY,
        promise=Promise.RESULT_BACKEND_AWAY,
    ),
    *(
        Replace(
            target=target,
            by=result_backend.starting_anyway,
            why="a task does not run when its start cannot be stored",
            promise=Promise.RESULT_BACKEND_AWAY,
        )
        for target in (
            "celery.backends.base:Backend.store_result",
            "celery.backends.rpc:RPCBackend.store_result",
        )
    ),
    Replace(
        target="celery.app.trace:AsyncResult",
        by=result_backend.unknown_when_away,
        why="a task that may have succeeded does not run again when nobody can say whether it has",
        promise=Promise.RESULT_BACKEND_AWAY,
        upstream="celery: catch all errors of the backend in `trace_task` where it asks whether a "
        "task has succeeded.",
    ),
)
