"""Files that commands read: what a file is, its text with the place of each fault, and its rows as messages."""
