"""The client of blocking callers: connections read and written by whoever asks."""
