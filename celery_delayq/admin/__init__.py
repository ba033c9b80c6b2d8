"""For operators: statistics, fsck, moves to and from stock Celery, Redis accounts."""
