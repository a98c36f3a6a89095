"""The index of keys: one file, the folder of them, the thread that follows the log, and queries."""
