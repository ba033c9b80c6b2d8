"""Commands that check the whole system: ``health`` and ``doctor``."""
