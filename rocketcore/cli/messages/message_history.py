"""``rocket message status``, ``trace`` and ``resend``: what became of one message, and once more to one consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rocketcore.admin.shapes import CONSUMED, directly_row, state_row, trace_row
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_admin, open_lists
from rocketcore.cli.shell.failures import EXIT_FAILED, EXIT_NOT_FOUND, CommandFailed
from rocketcore.cli.shell.render import Column, show_object, show_rows
from rocketcore.codes import TRACE_TOPIC
from rocketcore.errors import TopicNotExist
from rocketcore.ids import is_offset_id

if TYPE_CHECKING:
    from rocketcore.admin.client import Admin
    from rocketcore.message import ReceivedMessage

__all__ = ["resend", "status", "trace"]

_topic = click.option("--topic", help="Topic of the message. Not needed for an offset id.")


def _message(admin: Admin, message_id: str, topic: str | None) -> ReceivedMessage:
    if topic is None and not is_offset_id(message_id):
        raise click.UsageError(f"{message_id!r} is not an offset id: give --topic TOPIC too")
    return admin.view_message(topic, message_id)


@command(
    help="Show the state of a message in each group: not_yet, consumed, retry, dead_letter or unknown.\n\nThe state "
    "comes from offsets and copies. For POP and ordered groups, consumed means delivered. Broadcasting groups "
    "are not listed."
)
@click.argument("message_id", metavar="ID")
@_topic
@click.option("-g", "--group", help="Only this group.")
def status(message_id: str, topic: str | None, group: str | None) -> None:
    with open_admin(calls=2) as admin:
        message = _message(admin, message_id, topic)
        states = admin.message_states(message)
    if group is not None:
        states = [each for each in states if each.group == group]
        if not states:
            raise CommandFailed(
                "GROUP_NOT_EXIST", f"group {group!r} does not consume topic {message.queue.topic}",
                "see the groups with rocket group list", exit_code=EXIT_NOT_FOUND,
            )  # fmt: skip
    show_rows(
        [
            {
                "msg_id": message.msg_id,
                "topic": message.queue.topic,
                "broker": message.queue.broker,
                "queue_id": message.queue.queue_id,
                "offset": message.offset,
                **state_row(each),
            }
            for each in states
        ],
        ["group", "state", "failed", "group_offset", "offset", "members"],
        wide=["topic", "broker", "queue_id", "msg_id"],
        name="group",
    )


@command(
    help="Show the traces that clients recorded of a message, by its unique id or a key: sent, delivered, "
    "consumed.\n\nClients record traces only if you configure them (trace=True, or enableMsgTrace in Java). A "
    "trace arrives some seconds after the event."
)
@click.argument("message_id", metavar="ID")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, help="Topic that holds the traces.")
def trace(message_id: str, trace_topic: str) -> None:
    with open_lists() as admin:
        try:
            traces = admin.message_traces(message_id, trace_topic=trace_topic)
        except TopicNotExist:  # the first trace makes it
            traces = []
    if not traces:
        admin.check_whole()
        hint = (
            "traces arrive some seconds later, and only if the clients send them: trace=True, or enableMsgTrace in Java"
        )
        what = f"no client has traced {message_id!r} in {trace_topic}"
        raise CommandFailed("NOT_FOUND", what, hint, exit_code=EXIT_NOT_FOUND)
    show_rows(
        [trace_row(each) for each in traces],
        ["at", "event", "group", "success", "seconds", Column("retry_times", "RETRY"), "broker_address"],
        wide=["topic", "state", "client", "request_id", "keys", "msg_id"],
        name="event",
    )
    admin.check_whole()


@command(
    help="Make one connected consumer of a group consume a message now, and show the result. No offset "
    "moves.\n\n--timeout includes the time of the handler."
)
@click.argument("message_id", metavar="ID")
@_topic
@click.option("-g", "--group", required=True, help="The group.")
@click.option(
    "--client", "client_id", help="Member that consumes the message. Not needed if the group has only one member."
)
def resend(message_id: str, topic: str | None, group: str, client_id: str | None) -> int:
    with open_admin(calls=2 if client_id else 3) as admin:
        message = _message(admin, message_id, topic)
        if client_id is None:
            members = [each.client_id for each in admin.group_members(group)]
            if not members:
                raise CommandFailed(
                    "CONSUMER_NOT_ONLINE", f"no member of group {group!r} is connected",
                    "see its members with rocket group clients", exit_code=EXIT_NOT_FOUND,
                )  # fmt: skip
            if len(members) > 1:
                raise click.UsageError(f"give --client, one of {', '.join(members)}")
            client_id = members[0]
        result = admin.consume_directly(group, client_id, message)
    row = directly_row(message, group, client_id, result)
    show_object(row)
    return 0 if row["result"] in CONSUMED else EXIT_FAILED
