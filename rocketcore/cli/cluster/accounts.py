"""``rocket user …`` and ``rocket acl …``: accounts of Apache's brokers; our servers have none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from rocketcore.cli.cluster.topic import brokers_named
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.confirm import confirm
from rocketcore.cli.shell.connection import open_admin, open_lists
from rocketcore.cli.shell.failures import EXIT_FAILED, EXIT_NOT_FOUND, CommandFailed
from rocketcore.cli.shell.render import Column, progress, show_object, show_rows
from rocketcore.errors import RequestNotSupported
from rocketcore.printable import printable

if TYPE_CHECKING:
    from rocketcore.admin.accounts import User

__all__ = [
    "create_user",
    "delete_account",
    "delete_user",
    "grant",
    "list_accounts",
    "list_policies",
    "list_users",
    "put_account",
    "revoke",
    "set_white_addresses",
    "show_user",
    "update_user",
]

_ACTIONS: Final = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
_cluster = click.option("--cluster", help="Only on the brokers of this cluster.")
_broker = click.option("--broker", help="Only on this broker.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
_secret_env = click.option("--password-env", metavar="NAME", help="Environment variable that holds the password.")
_secret_file = click.option("--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                            help="File that holds it.")  # fmt: skip
_type = click.option("--type", "user_type", type=click.Choice(["Normal", "Super"]), help="Type of the user.")


@contextmanager
def _accounts_of(kind: Literal["5", "4"]) -> Iterator[None]:
    """Say in words that brokers have no accounts of a kind."""
    try:
        with brokers_named():
            yield
    except RequestNotSupported as error:
        what = "users and policies, as Apache's have from 5.3" if kind == "5" else "accounts of 4.x"
        raise CommandFailed(
            "NO_ACCOUNTS", f"the broker at {error.address} has no {what}",
            "our brokers have no accounts: protect them with TLS and client certificates, see docs/tls.md. For "
            "Apache 4.x, use rocket acl account; from 5.3 on, use rocket user and rocket acl grant",
            exit_code=EXIT_FAILED,
        ) from error  # fmt: skip


def _secret(variable: str | None, file: Path | None, *, needed: bool) -> str | None:
    """Return a password: of a variable, of a file, or typed; None where none is given and none is needed."""
    if variable is not None and file is not None:
        raise click.UsageError("give one of --password-env and --password-file")
    if variable is not None:
        if not os.environ.get(variable):
            raise click.UsageError(f"--password-env {variable}: the variable is not set, or it is empty")
        return os.environ[variable]
    if file is not None:
        try:
            return file.read_text("utf-8").strip()
        except UnicodeDecodeError as error:
            raise click.UsageError(f"--password-file {file}: {error.reason}") from error
    if not needed:
        return None
    if not sys.stdin.isatty():
        raise click.UsageError("no password: give --password-env or --password-file")
    from getpass import getpass

    first = getpass("password: ", stream=sys.stderr)
    if getpass("again: ", stream=sys.stderr) != first:
        raise click.UsageError("the two inputs differ: nothing was done")
    return first


def _user_row(user: User) -> dict[str, Any]:
    return {"user": user.username, "type": user.user_type, "status": user.status, "brokers": list(user.brokers)}


@command(help="List the users of 5.x brokers, or only users whose name contains TEXT. The list shows no passwords.")
@click.argument("text", required=False)
@_cluster
@_broker
def list_users(text: str | None, cluster: str | None, broker: str | None) -> None:
    with open_lists() as admin, _accounts_of("5"):
        users = admin.users(text or "", cluster=cluster, broker=broker)
    show_rows([_user_row(each) for each in users], ["user", "type", "status", "brokers"])
    admin.check_whole()


@command(help="Show a user and its permissions.")
@click.argument("name")
def show_user(name: str) -> None:
    with open_admin(calls=2) as admin, _accounts_of("5"):
        found = [each for each in admin.users(name) if each.username == name]
        if not found:
            raise _no_user(name)
        policies = [each for each in admin.policies(f"User:{name}") if each.subject == f"User:{name}"]
    allowed = [f"{each.decision} {','.join(each.actions)} on {each.resource}" for each in policies]
    show_object({**_user_row(found[0]), "policies": allowed})


def _no_user(name: str) -> CommandFailed:
    return CommandFailed(
        "USER_NOT_EXIST", f"no user {name!r}", "see the users with rocket user list", exit_code=EXIT_NOT_FOUND
    )


@command(help="Create a user on every broker. Enter its password when asked, or name a variable or file that holds it.")
@click.argument("name")
@_secret_env
@_secret_file
@_type
@_cluster
@_broker
def create_user(
    name: str,
    password_env: str | None,
    password_file: Path | None,
    user_type: Literal["Normal", "Super"] | None,
    cluster: str | None,
    broker: str | None,
) -> None:
    password = _secret(password_env, password_file, needed=True) or ""
    with open_admin() as admin, _accounts_of("5"):
        at = admin.create_user(name, password, user_type=user_type or "Normal", cluster=cluster, broker=broker)
    show_object({"user": name, "type": user_type or "Normal", "status": "enable", "brokers": at})


@command(help="Change a user on every broker: its password, its type, or its status.")
@click.argument("name")
@_secret_env
@_secret_file
@_type
@click.option("--status", type=click.Choice(["enable", "disable"]), help="Whether the user may log in.")
@_cluster
@_broker
def update_user(
    name: str,
    password_env: str | None,
    password_file: Path | None,
    user_type: Literal["Normal", "Super"] | None,
    status: Literal["enable", "disable"] | None,
    cluster: str | None,
    broker: str | None,
) -> None:
    password = _secret(password_env, password_file, needed=False)
    if password is None and user_type is None and status is None:
        raise click.UsageError("name at least one setting to change")
    with open_admin(calls=2) as admin, _accounts_of("5"):
        before = [each for each in admin.users(name, cluster=cluster, broker=broker) if each.username == name]
        if not before:
            raise _no_user(name)
        at = admin.update_user(
            name, password=password, user_type=user_type, status=status, cluster=cluster, broker=broker
        )
    show_object(
        {
            "user": name,
            "type": user_type or before[0].user_type,
            "status": status or before[0].status,
            "password_changed": password is not None,
            "brokers": at,
        }
    )


@command(help="Delete a user and its policies on every broker.")
@click.argument("name")
@_cluster
@_broker
@_yes
@_dry_run
def delete_user(name: str, cluster: str | None, broker: str | None, yes: bool, dry_run: bool) -> None:
    with open_admin(calls=3) as admin, _accounts_of("5"):
        found = [each for each in admin.users(name, cluster=cluster, broker=broker) if each.username == name]
        if not found:
            raise _no_user(name)
        policies = [each for each in admin.policies(f"User:{name}") if each.subject == f"User:{name}"]
        plan = f"delete user {name}, {found[0].user_type}, and {len(policies)} of its policies"
        if not confirm(printable(plan), name, yes=yes, dry_run=dry_run):
            return
        at = admin.delete_user(name, cluster=cluster, broker=broker)
    show_object({"user": name, "policies": len(policies), "deleted_on": at})


@command(help="List the policies of 5.x brokers: the actions that each subject may do on each resource.")
@click.option(
    "--subject", default="", metavar="TEXT", help="Only subjects that contain this text, for example User:ann."
)
@click.option("--resource", default="", metavar="TEXT", help="Only resources that contain this text.")
@_cluster
@_broker
def list_policies(subject: str, resource: str, cluster: str | None, broker: str | None) -> None:
    with open_lists() as admin, _accounts_of("5"):
        found = admin.policies(subject, resource, cluster=cluster, broker=broker)
    show_rows(
        [
            {
                "subject": each.subject,
                "resource": each.resource,
                "decision": each.decision,
                "actions": list(each.actions),
                "source_ips": list(each.source_ips),
                "kind": each.kind,
                "brokers": list(each.brokers),
            }
            for each in found
        ],
        ["subject", "resource", "decision", "actions", "source_ips"],
        wide=["kind", "brokers"],
    )
    admin.check_whole()


@command(
    help="Allow a user some actions on a resource, or deny them, on every broker.\n\nRESOURCE is Topic:orders, "
    "Topic:shop* (all topics with this prefix), Group:…, Cluster:… or *."
)
@click.argument("user")
@click.argument("resource")
@click.argument("actions", metavar="ACTION...", nargs=-1, required=True,
                type=click.Choice(_ACTIONS, case_sensitive=False))  # fmt: skip
@click.option("--deny", is_flag=True, help="Deny the actions.")
@click.option(
    "--from", "source_ips", multiple=True, metavar="IP", help="Only from this address. You can repeat this option."
)
@_cluster
@_broker
def grant(
    user: str,
    resource: str,
    actions: tuple[str, ...],
    deny: bool,
    source_ips: tuple[str, ...],
    cluster: str | None,
    broker: str | None,
) -> None:
    from rocketcore.admin.accounts import Policy

    subject = user if user.startswith("User:") else f"User:{user}"
    policy = Policy(subject, resource, actions, "Deny" if deny else "Allow", source_ips)
    with open_admin() as admin, _accounts_of("5"):
        at = admin.grant(policy, cluster=cluster, broker=broker)
    show_object(
        {
            "subject": subject,
            "resource": resource,
            "decision": policy.decision,
            "actions": list(actions),
            "source_ips": list(source_ips),
            "brokers": at,
        }
    )


@command(help="Remove a user's policy for a resource on every broker. Without RESOURCE, remove all its policies.")
@click.argument("user")
@click.argument("resource", required=False)
@_cluster
@_broker
@_yes
@_dry_run
def revoke(user: str, resource: str | None, cluster: str | None, broker: str | None, yes: bool, dry_run: bool) -> None:
    subject = user if user.startswith("User:") else f"User:{user}"
    with open_admin(calls=2) as admin, _accounts_of("5"):
        found = [
            each
            for each in admin.policies(subject, cluster=cluster, broker=broker)
            if each.subject == subject and resource in (None, each.resource)
        ]
        if not found:
            where = "" if resource is None else f" for {resource}"
            raise CommandFailed(
                "POLICY_NOT_EXIST", f"{subject} has no policy{where}", "see the policies with rocket acl list",
                exit_code=EXIT_NOT_FOUND,
            )  # fmt: skip
        lines = [f"  {each.decision} {', '.join(each.actions)} on {each.resource}" for each in found]
        plan = "\n".join(printable(line) for line in [f"revoke policies of {subject}: {len(found)}", *lines])
        if not confirm(plan, user, yes=yes, dry_run=dry_run):
            return
        at = admin.revoke(subject, resource, cluster=cluster, broker=broker)
    show_object({"subject": subject, "resource": resource, "policies": len(found), "deleted_on": at})


# 4.x


@command(help="List the accounts of 4.x brokers, and the addresses that need no account. The list shows no secrets.")
@_cluster
@_broker
def list_accounts(cluster: str | None, broker: str | None) -> None:
    with open_lists() as admin, _accounts_of("4"):
        found = admin.accounts(cluster=cluster, broker=broker)
    for address, white in found.white_addresses.items():
        if white:
            progress(f"{address} asks {', '.join(white)} for no account")
    show_rows(
        [
            {
                "access_key": each.access_key,
                "admin": each.admin,
                "default_topic_perm": each.default_topic_perm,
                "default_group_perm": each.default_group_perm,
                "topic_perms": list(each.topic_perms),
                "group_perms": list(each.group_perms),
                "white_remote_address": each.white_remote_address,
                "brokers": list(each.brokers),
            }
            for each in found.accounts
        ],
        ["access_key", "admin", Column("default_topic_perm", "TOPICS"), Column("default_group_perm", "GROUPS"),
         "topic_perms", "group_perms"],
        wide=["white_remote_address", "brokers"],
    )  # fmt: skip
    admin.check_whole()


_PERMISSION: Final = ("DENY", "PUB", "SUB", "PUB|SUB")


@command(
    help="Create or change an account on every 4.x broker. Enter its secret when asked, or name a variable or file "
    "that holds it.\n\nSettings that you leave out stay, except for --admin."
)
@click.argument("access_key_name", metavar="NAME")
@_secret_env
@_secret_file
@click.option(
    "--admin/--no-admin", "is_admin", default=False, show_default=True, help="Whether the account may change topics."
)
@click.option("--topics", type=click.Choice(_PERMISSION), help="Permission for topics that --topic does not name.")
@click.option("--groups", type=click.Choice(_PERMISSION), help="Permission for groups that --group does not name.")
@click.option(
    "--topic",
    "topic_perms",
    multiple=True,
    metavar="TOPIC=PERM",
    help="Permission for one topic. You can repeat this option.",
)
@click.option(
    "--group",
    "group_perms",
    multiple=True,
    metavar="GROUP=PERM",
    help="Permission for one group. You can repeat this option.",
)
@click.option("--white-address", metavar="ADDRESS", help="Address from which the account needs no signature.")
@_cluster
@_broker
def put_account(
    access_key_name: str,
    password_env: str | None,
    password_file: Path | None,
    is_admin: bool,
    topics: str | None,
    groups: str | None,
    topic_perms: tuple[str, ...],
    group_perms: tuple[str, ...],
    white_address: str | None,
    cluster: str | None,
    broker: str | None,
) -> None:
    secret = _secret(password_env, password_file, needed=True) or ""
    with open_admin() as admin, _accounts_of("4"):
        at = admin.put_account(
            access_key_name, secret, admin=is_admin, white_remote_address=white_address, default_topic_perm=topics,
            default_group_perm=groups, topic_perms=topic_perms, group_perms=group_perms, cluster=cluster,
            broker=broker,
        )  # fmt: skip
    show_object({"access_key": access_key_name, "admin": is_admin, "brokers": at})


@command(help="Delete an account on every 4.x broker.")
@click.argument("access_key_name", metavar="NAME")
@_cluster
@_broker
@_yes
@_dry_run
def delete_account(access_key_name: str, cluster: str | None, broker: str | None, yes: bool, dry_run: bool) -> None:
    with open_admin(calls=2) as admin, _accounts_of("4"):
        names = {each.access_key for each in admin.accounts(cluster=cluster, broker=broker).accounts}
        if access_key_name not in names:
            raise CommandFailed(
                "USER_NOT_EXIST", f"no account {access_key_name!r}", "see the accounts with rocket acl account list",
                exit_code=EXIT_NOT_FOUND,
            )  # fmt: skip
        if not confirm(printable(f"delete account {access_key_name}"), access_key_name, yes=yes, dry_run=dry_run):
            return
        at = admin.delete_account(access_key_name, cluster=cluster, broker=broker)
    show_object({"access_key": access_key_name, "deleted_on": at})


@command(help="Set the addresses from which 4.x brokers ask for no account. The new list replaces the old one.")
@click.argument("addresses", nargs=-1)
@_cluster
@_broker
@_yes
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def set_white_addresses(
    addresses: tuple[str, ...], cluster: str | None, broker: str | None, yes: bool, dry_run: bool
) -> None:
    with open_admin(calls=2) as admin, _accounts_of("4"):
        before = admin.accounts(cluster=cluster, broker=broker).white_addresses
        now = ", ".join(addresses) or "none"
        lines = [f"{address}: {', '.join(white) or 'none'} → {now}" for address, white in before.items()]
        if not confirm("\n".join(map(printable, lines)), now, yes=yes, dry_run=dry_run):
            return
        at = admin.set_white_addresses(addresses, cluster=cluster, broker=broker)
    show_object({"white_addresses": list(addresses), "brokers": at})
