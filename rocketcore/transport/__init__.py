"""Connections: the asyncio server and client, and a client for blocking callers."""
