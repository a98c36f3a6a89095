"""The public classes of ``rocketcore.aio``: each holds the logic that it calls, and lets one event loop use it."""
