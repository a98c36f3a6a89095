"""``rocket dlq export``: what ``message export`` does, of the topic of a group's dead letters."""

from __future__ import annotations

from typing import Any

import click

from rocketcore.cli.messages.message_export import export_messages
from rocketcore.cli.shell.command import command
from rocketcore.codes import DLQ_TOPIC_PREFIX

__all__ = ["export_dead_letters"]


@command(
    help="Write the dead letters of a group to a file: parquet, arrow or jsonl. The command changes nothing.\n\nIf "
    "an export was interrupted, run the same command again to continue it."
)
@click.argument("group")
@click.pass_context
def export_dead_letters(ctx: click.Context, /, group: str, **options: Any) -> Any:
    return ctx.invoke(export_messages, topic=DLQ_TOPIC_PREFIX + group, **options)


_OWN = {parameter.name for parameter in export_dead_letters.params}
_OUTPUT = [each for each in export_dead_letters.params if each.name == "output"]
for _parameter in _OUTPUT:  # it names the file here, as there
    export_dead_letters.params.remove(_parameter)
export_dead_letters.params.extend(
    each for each in export_messages.params if each.name not in _OWN - {"output"} and each.name != "topic"
)
