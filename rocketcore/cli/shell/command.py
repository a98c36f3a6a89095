"""How a command is declared: it takes the common options, and shells complete names of the cluster for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from rocketcore.cli.shell.names import names_of
from rocketcore.cli.shell.options import PipeAware, PipeClosed, Settings, global_options, log_to_stderr

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["command"]


class _ClusterName(click.types.StringParamType):
    """The name of a topic or a group, which a shell completes by asking the cluster that the line names."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        settings = ctx.find_root().ensure_object(Settings)
        return [CompletionItem(name) for name in names_of(self.kind, settings) if name.startswith(incomplete)]


_TOPIC, _GROUP = _ClusterName("topic"), _ClusterName("group")
_NAMES: Final = {"topic": _TOPIC, "topics": _TOPIC, "group": _GROUP, "source": _GROUP}
"""By the name of a parameter, where its value is a name of the cluster's."""


class _Command(PipeAware):
    """A command that leaves its name for the error message."""

    def invoke(self, ctx: click.Context) -> Any:
        settings = ctx.find_root().ensure_object(Settings)
        settings.command = ctx.command_path
        if settings.debug:
            log_to_stderr()
        self._check_text(ctx)
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosed from error

    def _check_text(self, ctx: click.Context) -> None:
        """Refuse names and values whose bytes are no text: servers would keep something else in their place."""
        for parameter in self.params:
            if not isinstance(parameter.type, (click.types.StringParamType, click.Choice)):
                continue
            given = ctx.params.get(parameter.name or "")
            for text in given if isinstance(given, tuple) else (given,):
                if isinstance(text, str) and any("\ud800" <= character <= "\udfff" for character in text):
                    raise click.BadParameter(f"{text!r} is not text in your locale's encoding", ctx, parameter)


def command(**attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command that takes the common options as well; its own win over a common one of the same name."""

    def declare(function: Callable[..., Any]) -> click.Command:
        made = click.command(cls=_Command, **attributes)(function)
        for parameter in made.params:
            known = _NAMES.get(parameter.name or "")
            plain = type(parameter.type) is click.types.StringParamType
            if known is not None and plain and not isinstance(parameter.default, str):  # which is a group of producers
                parameter.type = known
        return global_options(made)

    return declare
