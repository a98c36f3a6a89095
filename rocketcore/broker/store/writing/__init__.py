"""How messages come in: appended, written and synced in groups, then dispatched to their queues."""
