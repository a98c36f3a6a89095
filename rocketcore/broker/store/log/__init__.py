"""The commit log: its files, which of their pages are in memory, and what becomes of damage to them."""
