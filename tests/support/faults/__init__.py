"""Real faults against real workers, and a judge of what was lost, run twice or run early.

===============  =================================================================================
`ledger`         where tasks write down when they ran: a second Redis that no fault touches
`checker`        the judge: compares what was promised, what ran, what is left and who was killed
`leftovers`      what is left in the broker, by state
`stage`          broker, ledger, proxy, workers and dispatchers of one test
`producer`       publishes and keeps what it promised
`killer`         kills and stops processes at seeded random moments
`clocks`         a process whose clock is wrong
===============  =================================================================================

The tests are ``tests/acceptance/test_faults_*.py``; ``python -m tests.soak`` runs their long forms.
"""
