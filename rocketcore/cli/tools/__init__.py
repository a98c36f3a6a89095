"""Beside the cluster: ``console``, ``mcp``, ``metrics``, ``bench``, ``context``, ``completion``, ``version``."""
