"""``rocket context …`` and ``rocket config …``: which cluster commands are for, and as whom."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.confirm import confirm
from rocketcore.cli.shell.contexts import CONTEXT_VARIABLE, ContextFile, config_path
from rocketcore.cli.shell.failures import EXIT_NOT_FOUND, CommandFailed
from rocketcore.cli.shell.options import DEFAULT_NAMESRV, NAMESRV_VARIABLES, current
from rocketcore.cli.shell.render import progress, show_object, show_rows
from rocketcore.printable import printable

__all__ = ["add", "list_contexts", "path", "remove", "show", "show_config", "use"]


def _known(file: ContextFile, name: str) -> dict[str, str]:
    if name not in file.names:
        raise CommandFailed(
            "CONTEXT_NOT_EXIST", f"no context {name!r} in {file.path}", "see the contexts with rocket context list",
            exit_code=EXIT_NOT_FOUND,
        )  # fmt: skip
    return file.context(name)


def _in_use(file: ContextFile) -> str | None:
    return current().context_option or os.environ.get(CONTEXT_VARIABLE) or file.current


def _row(name: str, context: dict[str, str], in_use: str | None) -> dict[str, Any]:
    secret = context.get("secret_key_env") or context.get("secret_key_file")
    tls = any(key.startswith("tls") and value != "false" for key, value in context.items())
    return {
        "context": name,
        "current": name == in_use,
        "namesrv": context.get("namesrv"),
        "tls": tls,
        "access_key": context.get("access_key"),
        "secret": secret,
    }


@command(help="List the contexts: named clusters and accounts.")
def list_contexts() -> None:
    file = ContextFile.opened()
    in_use = _in_use(file)
    rows = [_row(name, file.context(name), in_use) for name in file.names]
    show_rows(rows, ["context", "current", "namesrv", "tls", "access_key"], wide=["secret"])


@command(
    help="Save a cluster and an account under a name: the values of --namesrv, --tls… and --access-key.\n\nYour "
    "first context is in use at once. The file names where the secret is; it never contains the secret."
)
@click.argument("name")
@click.option("--secret-key-env", metavar="NAME", help="Environment variable that holds the secret of the account.")
@click.option("--secret-key-file", metavar="FILE", help="File that holds it.")
@click.option("--use", "in_use", is_flag=True, help="Use it from now on.")
def add(name: str, secret_key_env: str | None, secret_key_file: str | None, in_use: bool) -> None:
    settings = current()
    if not name or not name.isprintable():
        raise click.UsageError(f"invalid context name: {name!r}")
    if settings.namesrv_option is None or not settings.namesrv_option.strip():
        raise click.UsageError("no cluster: give --namesrv")
    if (secret_key_env or secret_key_file) and not settings.access_key:
        raise click.UsageError("no account for this secret: give --access-key")
    given: dict[str, str | bool | None] = {
        "namesrv": settings.namesrv,
        "tls": settings.tls_option or None,
        "tls_ca": _absolute(settings.tls_ca),
        "tls_cert": _absolute(settings.tls_cert),
        "tls_key": _absolute(settings.tls_key),
        "tls_insecure": settings.tls_insecure or None,
        "access_key": settings.access_key,
        "secret_key_env": secret_key_env,
        "secret_key_file": _absolute(secret_key_file),
    }
    values = {key: value for key, value in given.items() if value}
    file = ContextFile.opened()
    if name in file.names:
        raise CommandFailed(
            "CONTEXT_EXISTS", f"context {name!r} is in {file.path}: nothing was changed",
            f"rocket context remove {name} first, or edit the file",
        )  # fmt: skip
    in_use = in_use or file.current is None
    file.add(name, values, use=in_use)
    show_object(_row(name, file.context(name), name if in_use else None))


def _absolute(file: object) -> str | None:
    return None if file is None else os.path.abspath(os.path.expanduser(str(file)))


@command(help="Use a context from now on, unless --context or ROCKET_CONTEXT names another.")
@click.argument("name")
def use(name: str) -> None:
    file = ContextFile.opened()
    context = _known(file, name)
    before = file.current
    file.use(name)
    show_object({"context": name, "before": before, "namesrv": context.get("namesrv")})
    if os.environ.get(CONTEXT_VARIABLE, name) not in ("", name):
        progress(f"{CONTEXT_VARIABLE}={os.environ[CONTEXT_VARIABLE]} is set and names another")


@command(help="Show a context. Without NAME, show the context in use.")
@click.argument("name", required=False)
def show(name: str | None) -> None:
    file = ContextFile.opened()
    in_use = _in_use(file)
    if name is None and in_use is None:
        raise CommandFailed(
            "CONTEXT_NOT_EXIST", "no context is in use", "see the contexts with rocket context list",
            exit_code=EXIT_NOT_FOUND,
        )  # fmt: skip
    wanted = name or in_use or ""
    show_object(_row(wanted, _known(file, wanted), in_use))


@command(help="Remove a context from the file. If it was in use, no context is in use afterwards.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
def remove(name: str, yes: bool, dry_run: bool) -> None:
    file = ContextFile.opened()
    context = _known(file, name)
    said = ", ".join(f"{key} = {value}" for key, value in context.items())
    plan = f"remove context {name}{', which is in use' if file.current == name else ''}: {said or 'empty'}"
    if not confirm(printable(plan), name, yes=yes, dry_run=dry_run):
        return
    file.remove(name)
    show_object({"context": name, "removed_from": str(file.path)})


@command(help="Print the path of the context file, even if it does not exist yet.")
def path() -> None:
    show_object({"path": str(config_path()), "exists": ContextFile.opened().there})


@command(help="Show the settings that commands use here, and where each comes from. Secrets stay hidden.")
def show_config() -> None:
    rows = [{"setting": name, "value": value, "source": source} for name, value, source in _effective()]
    show_rows(rows, ["setting", "value", "source"])


def _effective() -> Iterator[tuple[str, str | bool | None, str]]:
    settings = current()
    name, context = settings.context
    asked = settings.context_option is not None
    by = "option" if asked else f"variable {CONTEXT_VARIABLE}" if os.environ.get(CONTEXT_VARIABLE) else "file"
    yield "context", name, by if name else "default"

    def found(
        key: str, option: object, variables: tuple[str, ...], default: str | bool | None = None
    ) -> tuple[str, str | bool | None, str]:
        if option:
            return key, str(option) if not isinstance(option, bool) else option, "option"
        of_context = (key, context.get(key), f"context {name}")
        variable = next((each for each in variables if os.environ.get(each)), None)
        if key in context and (asked or variable is None):
            return of_context
        if variable is not None:
            return key, os.environ[variable], f"variable {variable}"
        return key, default, "default"

    yield found("namesrv", settings.namesrv_option, NAMESRV_VARIABLES, DEFAULT_NAMESRV)
    for key in ("tls", "tls_ca", "tls_cert", "tls_key", "tls_insecure"):
        option = settings.tls_option if key == "tls" else getattr(settings, key)
        yield found(key, option, (f"ROCKET_{key.upper()}",), False if key in ("tls", "tls_insecure") else None)
    yield found("access_key", settings.access_key, ("ROCKET_ACCESS_KEY",))
    if os.environ.get("ROCKET_SECRET_KEY"):
        yield "secret_key", "set", "variable ROCKET_SECRET_KEY"
    else:
        variable, file = context.get("secret_key_env"), context.get("secret_key_file")
        said = f"in variable {variable}" if variable else f"in file {file}" if file else None
        yield "secret_key", said, f"context {name}" if said else "default"
    yield "timeout", str(settings.timeout), "default" if settings.timeout_option is None else "option"
