"""``rocket completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rocketcore.cli.shell.command import command

__all__ = ["completion"]


@command(
    help="Print the script that completes commands and options in your shell.\n\nFor bash, put into ~/.bashrc: "
    'eval "$(rocket completion bash)". For zsh, do the same in ~/.zshrc with zsh. For fish, run: rocket completion '
    "fish > ~/.config/fish/completions/rocket.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    click.echo(kind(root, {}, "rocket", "_ROCKET_COMPLETE").source())
