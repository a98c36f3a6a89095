"""``rocket message get`` and ``rocket message find``: single messages, by id, by place, by key, by tag."""

from __future__ import annotations

import re
from typing import Final

import click

from rocketcore.cli.messages.forms import message_object
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.connection import open_admin, open_lists
from rocketcore.cli.shell.failures import EXIT_NOT_FOUND, CommandFailed
from rocketcore.cli.shell.render import Column, show_object, show_rows, timestamp
from rocketcore.cli.shell.times import TIME
from rocketcore.ids import is_offset_id
from rocketcore.message import MessageQueue

__all__ = ["find", "get"]

_PLACE: Final = re.compile(r"(.+)/(\d{1,9})/(\d{1,18})")
_MOST: Final = 64
"""What a broker answers at most, unless its ``maxMsgsNumBatch`` says otherwise."""


@command(
    help="Show one message, by its id or its position.\n\nID is an offset id, which contains the position of the "
    "message. With --topic, it may also be the unique id that the producer got."
)
@click.argument("id_or_topic", metavar="ID|TOPIC")
@click.option("--at", "place", metavar="BROKER/QUEUE/OFFSET", help="Show the message of TOPIC at this position.")
@click.option("--topic", help="Topic of the message.")
def get(id_or_topic: str, place: str | None, topic: str | None) -> None:
    if place is not None and topic is not None:
        raise click.UsageError("with --at, give the topic as the argument, not with --topic")
    if place is None and topic is None and not is_offset_id(id_or_topic):
        raise click.UsageError(
            f"{id_or_topic!r} is not an offset id: if it is a topic, give --at BROKER/QUEUE/OFFSET; if it is another "
            "message id, give --topic TOPIC"
        )
    with open_admin() as admin:
        if place is None:
            message = admin.view_message(topic, id_or_topic)
        else:
            match = _PLACE.fullmatch(place)
            if match is None:
                raise click.UsageError(
                    f"--at {place}: give a position as BROKER/QUEUE/OFFSET, for example broker-a/0/17"
                )
            message = admin.message_at(MessageQueue(id_or_topic, match[1], int(match[2])), int(match[3]))
    show_object(message_object(message), name="msg_id")


@command(
    help="Find the newest messages of a topic by key or by tag, and list the oldest of them first.\n\nKEY is a key "
    "of the message or its unique id. Brokers before 5.5 cannot find messages by tag."
)
@click.argument("topic")
@click.option("-k", "--key", help="Messages with this key.")
@click.option("-t", "--tag", help="Messages with this tag.")
@click.option("--since", type=TIME, metavar="TIME", help="Only messages stored since this time, for example 10m.")
@click.option("--until", type=TIME, metavar="TIME", help="Only messages stored before this time.")
@click.option("-n", "--count", type=click.IntRange(1), default=_MOST, show_default=True,
              help="Show at most this many messages of each broker.")  # fmt: skip
def find(topic: str, key: str | None, tag: str | None, since: int | None, until: int | None, count: int) -> None:
    if (key is None) == (tag is None):
        raise click.UsageError(
            "give --key or --tag; to see the messages of a time, run: rocket tail TOPIC --since 10m -e"
        )
    if since is not None and until is not None and since > until:
        raise click.UsageError(f"--since {timestamp(since)} is later than --until {timestamp(until)}")
    # A broker includes both ends; here, as for tail and export, the end is the first that is not meant.
    times = {"begin": since, "end": None if until is None else max(0, until - 1)}
    given = {name: time for name, time in times.items() if time is not None}
    none_meant = until is not None and until <= (since or 0)
    with open_lists() as admin:
        messages = [] if none_meant else admin.query_messages(topic, key, tag=tag, max_messages=count, **given)
    if not messages:
        admin.check_whole()
        what = f"key {key!r}" if key is not None else f"tag {tag!r}"
        raise CommandFailed(
            "NOT_FOUND",
            f"no message of topic {topic} has {what}",
            "give one of the message's keys, or its unique id" if key is not None else "",
            exit_code=EXIT_NOT_FOUND,
        )
    show_rows(
        [message_object(message) for message in messages],
        [
            "broker",
            Column("queue_id", "QUEUE"),
            "offset",
            "msg_id",
            "tag",
            "keys",
            "stored_at",
        ],
        wide=["body"],
        name="msg_id",
    )
    admin.check_whole()
