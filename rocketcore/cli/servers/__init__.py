"""Commands that run servers here: ``up``, ``broker start``, ``namesrv start``, ``broker verify``."""
