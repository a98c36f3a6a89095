"""Verify a store that nobody has open: every file of it, and what a start would make of them (no class of RocketMQ's).

What a sound record is, where a log goes on behind damage and which units follow is not said here again: a start's own
pass over the log (``recovery.LogScan``) is made, with files that refuse to be changed, and where a start writes, this
compares and names.
"""

from rocketcore.broker.store.verify.audit import Progress, verify
from rocketcore.broker.store.verify.files import ReadOnlyFiles, Sized, sized
from rocketcore.broker.store.verify.report import Damage, LostMessages, PutAside, Report

__all__ = ["Damage", "LostMessages", "Progress", "PutAside", "ReadOnlyFiles", "Report", "Sized", "sized", "verify"]
