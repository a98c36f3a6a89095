"""What only a server has: the listening socket, admission, the first bytes of a connection."""
