"""The consume queues: one queue, the table of all, where they end, and how a damaged one is repaired."""
