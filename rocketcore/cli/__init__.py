"""The ``rocket`` command."""
