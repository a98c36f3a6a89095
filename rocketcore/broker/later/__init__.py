"""Messages that wait: for their delay level, or for a time."""
