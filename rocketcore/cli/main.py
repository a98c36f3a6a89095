"""The command ``rocket``: its tree, its exit codes and the form of its errors.

Nothing but click is imported before a command is chosen: a group knows its commands' modules and one-line helps by
heart, so that ``rocket --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from itertools import pairwise
from typing import Any, Final, NamedTuple, NoReturn

import click

from rocketcore.cli.shell.options import PipeAware, PipeClosed, Settings, end_signals, global_options

__all__ = ["EXIT_INTERRUPTED", "main", "rocket", "run"]

EXIT_INTERRUPTED: Final = 130
JSON_FORMS: Final = ("json", "jsonl")


class Entry(NamedTuple):
    """Where a command is and what it does, known without importing it."""

    module: str
    function: str
    help: str


class _NoVerb(click.UsageError):
    """A group was named, and none of its commands; the message is its help. Click has one since 8.2 only."""


class LazyGroup(PipeAware, click.Group):
    """A group whose commands are imported when they are called."""

    def __init__(self, name: str, help: str, entries: dict[str, Entry | LazyGroup]) -> None:
        super().__init__(name, help=help)
        self.entries = entries

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise _NoVerb(ctx.get_help(), ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None or isinstance(entry, LazyGroup):
            return entry
        command = getattr(import_module(f"rocketcore.cli.{entry.module}"), entry.function)
        if not isinstance(command, click.Command):
            raise TypeError(f"rocketcore.cli.{entry.module}.{entry.function} is not a command")
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, str(entry.help)) for name, entry in self.entries.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.entries and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.entries, 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise click.UsageError(f"unknown command: {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


def _group(name: str, help: str, **entries: tuple[str, str, str]) -> LazyGroup:
    return LazyGroup(name, help, {key: Entry(*entry) for key, entry in entries.items()})


COMMANDS: Final[dict[str, Entry | LazyGroup]] = {
    "up": Entry("servers.up", "up", "Run a name server and brokers on this machine, in the foreground."),
    "demo": Entry("servers.up", "demo", "Write a sample with Spark, read it with consumers, check it."),
    "produce": Entry("messages.produce", "produce", "Send messages to a topic."),
    "consume": Entry("messages.consume", "consume", "Consume topics as a member of a group; moves its offsets."),
    "tail": Entry("messages.consume", "tail", "Watch topics without a group; moves no offsets."),
    "topic": _group(
        "topic",
        "Topics: list, describe, create, update, delete, route, stats.",
        list=("cluster.topic", "list_topics", "List the topics of the cluster."),
        describe=("cluster.topic", "describe", "Show the queues of a topic and their offsets."),
        create=("cluster.topic", "create", "Create a topic."),
        update=("cluster.topic", "update", "Change a topic and show the difference."),
        delete=("cluster.topic", "delete", "Delete a topic and its messages."),
        route=("cluster.topic", "route", "Show which brokers serve a topic."),
        stats=("cluster.statistics", "topic_stats", "Show how much a topic stored in the last minute, hour and day."),
    ),
    "group": _group(
        "group",
        "Consumer groups: list, describe, lag, clients, create, update, delete.",
        list=("cluster.group", "list_groups", "List the consumer groups of the cluster."),
        describe=("cluster.group", "describe", "Show members, subscriptions and progress of a group."),
        lag=("cluster.group", "lag", "Show how many messages wait for a group, and for how long."),
        clients=("cluster.group", "clients", "List the connected members of a group."),
        create=("cluster.group", "create", "Create a group."),
        update=("cluster.group", "update", "Change a group and show the difference."),
        delete=("cluster.group", "delete", "Delete a group and its offsets."),
    ),
    "offset": _group(
        "offset",
        "Offsets of consumer groups: show, reset, skip, clone, locate.",
        show=("cluster.offset", "show", "Show the offsets of a group."),
        reset=("cluster.offset", "reset", "Move a group to other offsets."),
        skip=("cluster.offset", "skip", "Make a group skip waiting messages."),
        clone=("cluster.offset", "clone", "Move a group to the offsets of another group."),
        locate=("cluster.offset", "locate", "Show the offset that each queue had at a time."),
    ),
    "message": _group(
        "message",
        "Find messages, follow one, export and import a topic: get, find, status, trace, …",
        get=("messages.message_find", "get", "Show one message, by id or position."),
        find=("messages.message_find", "find", "Find messages by key or by tag."),
        status=("messages.message_history", "status", "Show how far each group is with a message."),
        trace=("messages.message_history", "trace", "Show the traces that clients recorded of a message."),
        resend=("messages.message_history", "resend", "Make one consumer consume a message now."),
        export=("messages.message_export", "export_messages", "Write the messages of a topic to a file."),
        **{"import": ("messages.message_import", "import_messages", "Send the messages of a file to a topic.")},
    ),
    "dlq": _group(
        "dlq",
        "Dead letters of consumer groups: list, show, redrive, export, purge.",
        list=("messages.dlq", "list_groups", "List the groups that have dead letters."),
        show=("messages.dlq", "show", "Show the newest dead letters of a group."),
        redrive=("messages.dlq", "redrive", "Deliver dead letters to their group again."),
        export=("messages.dlq_export", "export_dead_letters", "Write the dead letters of a group to a file."),
        purge=("messages.dlq", "purge", "Delete the dead letters of a group."),
    ),
    "client": _group(
        "client",
        "Connected clients: list.",
        list=("cluster.client", "list_clients", "List connected producers, or the clients of a group."),
    ),
    "cluster": _group(
        "cluster",
        "Inspect clusters, export and import their topics and groups: list, describe, topology, …",
        list=("cluster.clusters", "list_clusters", "List clusters with their brokers."),
        describe=("cluster.clusters", "describe", "Show brokers with version, topics and messages per second."),
        topology=("cluster.clusters", "topology", "Show which brokers are registered at which name servers."),
        export=("cluster.metadata", "export_metadata", "Print the settings of all topics and groups."),
        **{"import": ("cluster.metadata", "import_metadata", "Create and change topics and groups from a file.")},
    ),
    "broker": LazyGroup(
        "broker",
        "Run and inspect brokers: start, list, describe, stats, config, drain, undrain, clean, verify.",
        {
            "start": Entry("servers.start", "start_broker", "Run a broker in the foreground."),
            "list": Entry("cluster.broker", "list_brokers", "List the brokers that are registered."),
            "describe": Entry("cluster.broker", "describe", "Show the state of a broker."),
            "stats": Entry(
                "cluster.statistics", "broker_stats", "Show messages in and out in the last minute, hour and day."
            ),
            "config": _group(
                "config",
                "Settings of a broker.",
                get=("cluster.broker_config", "get_config", "Show the settings of a broker."),
                set=("cluster.broker_config", "set_config", "Change a setting of a running broker."),
            ),
            "drain": Entry("cluster.broker", "drain", "Make a broker read-only, so that producers leave it."),
            "undrain": Entry("cluster.broker", "undrain", "Make a broker writable again."),
            "clean": Entry("cluster.broker", "clean", "Make a broker delete old files now."),
            "verify": Entry("servers.verify", "verify", "Check the files of a stopped broker."),
        },
    ),
    "namesrv": LazyGroup(
        "namesrv",
        "Run a name server, manage its settings and key-value table: start, config, kv.",
        {
            "start": Entry("servers.start", "start_namesrv", "Run a name server in the foreground."),
            "config": _group(
                "config",
                "Settings of the name servers.",
                get=("cluster.namesrv", "get_config", "Show the settings of a name server."),
                set=("cluster.namesrv", "set_config", "Change a setting on every name server."),
            ),
            "kv": _group(
                "kv",
                "The key-value table of the name servers.",
                list=("cluster.namesrv", "list_kv", "List the keys of a namespace."),
                get=("cluster.namesrv", "get_kv", "Show one value."),
                set=("cluster.namesrv", "set_kv", "Set a value on every name server."),
                delete=("cluster.namesrv", "delete_kv", "Delete a value on every name server."),
            ),
        },
    ),
    "bench": _group(
        "bench",
        "Measure sending, consuming, Spark and the codec.",
        produce=("tools.bench", "bench_produce", "Send as fast as possible for a while."),
        consume=("tools.bench", "bench_consume", "Read a topic as fast as possible."),
        spark=("tools.bench_spark", "bench_spark", "Write and read with Spark, and compare with Spark alone."),
        codec=("tools.bench", "bench_codec", "Encode and decode messages without a network."),
    ),
    "user": _group(
        "user",
        "Users of 5.x brokers with access control: list, show, create, update, delete.",
        list=("cluster.accounts", "list_users", "List the users."),
        show=("cluster.accounts", "show_user", "Show a user and its permissions."),
        create=("cluster.accounts", "create_user", "Create a user."),
        update=("cluster.accounts", "update_user", "Change the password, type or status of a user."),
        delete=("cluster.accounts", "delete_user", "Delete a user and its policies."),
    ),
    "acl": LazyGroup(
        "acl",
        "Permissions: list, grant, revoke (5.x), account (4.x).",
        {
            "list": Entry("cluster.accounts", "list_policies", "List the permissions of each subject."),
            "grant": Entry("cluster.accounts", "grant", "Allow or deny a user actions on a resource."),
            "revoke": Entry("cluster.accounts", "revoke", "Remove a policy."),
            "account": _group(
                "account",
                "Accounts of 4.x brokers.",
                list=("cluster.accounts", "list_accounts", "List the accounts."),
                put=("cluster.accounts", "put_account", "Create or change an account."),
                delete=("cluster.accounts", "delete_account", "Delete an account."),
                white=("cluster.accounts", "set_white_addresses", "Set the addresses that need no account."),
            ),
        },
    ),
    "metrics": _group(
        "metrics",
        "Alert rules and dashboards for your monitoring: rules, dashboards.",
        rules=("tools.metrics", "rules", "Print alert rules for Prometheus."),
        dashboards=("tools.metrics", "dashboards", "Print a dashboard for Grafana."),
    ),
    "mcp": Entry("tools.mcp", "mcp", "Serve AI agents with the Model Context Protocol."),
    "top": Entry("cluster.top", "top", "Watch brokers and groups; --once shows them once."),
    "doctor": Entry("cluster.doctor", "doctor", "Look for problems on this machine and in the cluster."),
    "context": _group(
        "context",
        "Named clusters and accounts: list, show, add, use, remove.",
        list=("tools.context", "list_contexts", "List the contexts."),
        show=("tools.context", "show", "Show a context."),
        add=("tools.context", "add", "Save a cluster and an account under a name."),
        use=("tools.context", "use", "Use a context from now on."),
        remove=("tools.context", "remove", "Remove a context."),
    ),
    "config": _group(
        "config",
        "Settings of this command: path, show.",
        path=("tools.context", "path", "Print the path of the context file."),
        show=("tools.context", "show_config", "Show the settings, and where each comes from."),
    ),
    "console": Entry("servers.console", "console", "Serve the web console of a cluster."),
    "completion": Entry("tools.completion", "completion", "Print the script that completes commands in your shell."),
    "version": Entry("tools.version", "version", "Show versions."),
}


def _show_version(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from rocketcore import __version__

        click.echo(f"rocketcore {__version__}")
        ctx.exit()


rocket = global_options(
    LazyGroup("rocket", "RocketMQ in Python: run servers, send and read messages, administer clusters.", COMMANDS)
)
rocket.params.append(
    click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
                 help="Show the version and exit.")
)  # fmt: skip


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; prints errors itself."""
    settings = Settings(arguments=tuple(sys.argv[1:] if arguments is None else arguments))
    try:
        code = rocket.main(settings.arguments, "rocket", standalone_mode=False, obj=settings)
        _flush()
    except PipeClosed:
        _flush()
        return 0
    except (KeyboardInterrupt, click.exceptions.Abort):
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        _show_usage(error, settings)
        return error.exit_code
    except Exception as error:
        if settings.debug:
            raise
        from rocketcore.cli.shell.failures import failure_of

        failure = failure_of(error, settings)
        failure.show(settings)
        with contextlib.suppress(OSError):
            _flush()
        return failure.exit_code
    return code if isinstance(code, int) else 0


def _flush() -> None:
    """Write what stdout still holds; nothing where its reader has gone, which has what it wanted."""
    try:
        sys.stdout.flush()
    except OSError as error:
        from rocketcore.cli.shell.render import discard

        discard(sys.stdout)  # what is buffered cannot be written: keep the exit from trying
        if not isinstance(error, BrokenPipeError):
            raise


def _show_usage(error: click.ClickException, settings: Settings) -> None:
    """Say what is wrong with the arguments, as JSON where they ask for it, though they were not read to their end."""
    from rocketcore.cli.shell.failures import Failure
    from rocketcore.cli.shell.render import tell

    asked = pairwise([*settings.arguments, ""])
    if any(
        (name in ("-o", "--output") and form in JSON_FORMS)
        or name in [f"{option}{form}" for option in ("-o", "--output=") for form in JSON_FORMS]
        for name, form in asked
    ):
        settings.output = "json"
    json = settings.output in JSON_FORMS
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, _NoVerb) and not json:
        tell(error.message)
        return
    path = "" if context is None else f" of {context.command_path}"
    hint = "see --help" if json else f"see --help{path}"
    Failure(error.exit_code, "USAGE", error.format_message(), "", hint).show(settings)


def main() -> NoReturn:
    """Entry point of the command. SIGTERM and the end of the terminal end it as Ctrl-C does, see ``end_signals``."""
    for number in end_signals():
        if number != signal.SIGINT:  # which is Python's own
            signal.signal(number, _interrupt)
    _open_streams()
    sys.exit(run())


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


class _MissingStdout(FileIO):
    """What stands for the stdout of a process that was started without."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, "stdout is closed") from None


def _open_streams() -> None:
    """Give stdin, stdout and stderr to a process that was started without, and let stdout show every character.

    A print to a stderr that is None goes to stdout, which is data. That data is lost without a stdout: every write to
    the one made here fails, as it would on a full disk.
    """
    for name, mode in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, mode)
            out = _MissingStdout if name == "stdout" else FileIO
            buffered = BufferedReader(FileIO(number)) if name == "stdin" else BufferedWriter(out(number, "w"))
            setattr(sys, name, TextIOWrapper(buffered, encoding="utf-8"))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
