"""Helpers of several test files. Helpers of one file are in that file. This imports nothing."""

#: Longest wait of a test for an event (seconds). Only a hang reaches it, even on a busy machine. A
#: test has a shorter wait only to see that nothing happens.
TIMEOUT = 240.0

#: A lease of workers of which one is killed or loses Redis (seconds): a test waits for its end, and
#: a busy machine extends the leases of other workers in time.
SHORT_LEASE = 2.0
