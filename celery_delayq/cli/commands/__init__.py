"""The commands of ``celery -A app delayq``, each in the module of its name or with related ones."""
