"""Compiled kernels over buffers, one format per module, imported by module: ``from rocketcore._fast import frame``."""
