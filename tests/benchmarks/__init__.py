"""Stock Celery + Redis and this package, measured side by side: ``python -m tests.benchmarks``.

Both sides run in the same run, on the same Redis server process, each in its own database.
A measurement is one function in ``measurements/``; it declares its rows (name, unit, direction,
target) and hands back what it saw on both sides. Nothing else has to be told about it.
"""
