"""Dead letters: list, show, replay and delete."""
