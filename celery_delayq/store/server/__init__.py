"""What a Redis server offers, and what an account may do there."""
