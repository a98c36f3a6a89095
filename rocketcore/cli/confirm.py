"""Dangerous commands: show the plan, then ask for the object's name."""

from __future__ import annotations

import sys

import click

from rocketcore.cli.render import progress

__all__ = ["confirm"]


def confirm(plan: str, name: str, *, yes: bool, dry_run: bool) -> bool:
    """Return whether to go on; raises UsageError where nobody can be asked, or the answer is another name."""
    if dry_run:
        click.echo(plan, err=True)
        return False
    if yes:
        progress(plan)
        return True
    click.echo(plan, err=True)
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is there to confirm: add --yes")
    typed = click.prompt("type its name to go on", err=True, default="", show_default=False)
    if typed != name:
        raise click.UsageError(f"{typed!r} is not {name!r}: nothing was done")
    return True
