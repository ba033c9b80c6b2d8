"""Commands that look at the whole: ``health`` and ``doctor``."""
