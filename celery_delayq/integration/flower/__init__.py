"""Changes to Flower, which runs in a process of Celery."""
