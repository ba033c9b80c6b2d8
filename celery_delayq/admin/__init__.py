"""What operators look at and repair: statistics, fsck, moves to and from stock Celery, Redis
accounts."""
