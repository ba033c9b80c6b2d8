"""What several test files need; what one file needs stands there. Nothing is imported here."""

#: Seconds that a test waits for what must happen. Only a hang reaches them, however busy the
#: machine is; a shorter wait stands only where a test looks that nothing happens.
TIMEOUT = 240.0
