"""How a store is opened: its folder and lock, and recovery after a crash."""
