"""An archive: what was added to it, in folders or databases, and the way back."""
