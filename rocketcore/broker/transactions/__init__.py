"""Transactions: half messages, how each ends, and how producers are asked."""
