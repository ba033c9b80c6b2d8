"""Changes to the pools of a Celery worker."""
