"""How messages go out: reads of a queue, single records, and those that wait for the disk."""
