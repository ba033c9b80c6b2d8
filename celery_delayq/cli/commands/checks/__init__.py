"""Commands that compare what is there with what should be there."""
