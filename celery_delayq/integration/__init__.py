"""Every change to Celery itself."""
