"""Dangerous commands: show the plan, then ask for the object's name."""

from __future__ import annotations

import sys

import click

from rocketcore.cli.shell.render import progress, tell

__all__ = ["confirm"]


def confirm(plan: str, name: str, *, yes: bool, dry_run: bool) -> bool:
    """Return whether to go on; raises UsageError where nobody can be asked, or the answer is another name."""
    if dry_run:
        tell(plan)
        return False
    if yes:
        progress(plan)
        return True
    tell(plan)
    if not sys.stdin.isatty():
        raise click.UsageError("cannot ask for confirmation without a terminal: add --yes")
    tell("type its name to go on: ", end="")  # click.prompt would write to stdout as well
    line = sys.stdin.readline()
    if not line:
        tell("")
    typed = line.rstrip("\r\n")
    if typed != name:
        raise click.UsageError(f"{typed!r} is not {name!r}: nothing was done")
    return True
