"""Compiled kernels over buffers, one format per module. Import a kernel by its module: ``from rocketcore._fast import frame``."""
