"""What the broker remembers besides messages: topics, groups, offsets, clients, queue locks."""
