"""``rocket broker verify``: look at the files of a broker that does not run, and repair what follows from its log."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocketcore.cli.servers.start import config_file_option
from rocketcore.cli.shell.command import command
from rocketcore.cli.shell.failures import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_PARTLY, CommandFailed
from rocketcore.cli.shell.options import Folder, current
from rocketcore.cli.shell.progress_bar import ProgressBar
from rocketcore.cli.shell.render import Column, counted_are, progress, show_object, show_rows, show_title

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocketcore.broker.store.verify import Damage, LostMessages, Report, Sized

__all__ = ["verify"]

MEBIBYTE = 1 << 20
PARTS = ("commitlog", "consumequeue", "checkpoint", "queuebounds", "abort")
"""A folder that has none of these is no store. Others have a folder ``config``, too."""


@command(help="Check every file of a stopped broker, ours or Apache's, and show damaged, served and lost messages. "
              "If a file is damaged, the exit code is 1. Without --repair, the command changes nothing.")  # fmt: skip
@click.argument("folder", type=Folder())
@click.option(
    "--repair", is_flag=True, help="Rebuild the files that follow from the log, and set damaged parts of the log aside."
)
@config_file_option
def verify(folder: Path, repair: bool, config_file: Path | None) -> int:
    from rocketcore.broker.verify import repair_broker, verify_broker

    config, is_told, doubt = _config(folder, config_file)
    with ExitStack() as stack:
        bars: list[ProgressBar] = []

        def show(done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(ProgressBar("MiB of the log", total // MEBIBYTE)))
            bars[0].show(done // MEBIBYTE)

        before = report = verify_broker(config, progress=show)
        mended: list[Damage] = []
        if repair and not report.is_whole and is_told:
            report = repair_broker(config, report, progress=show)
            left = set(report.damaged)
            mended = [damage for damage in before.damaged if damage not in left]
    if doubt:
        report.remarks.append(f"the log does not tell its mappedFileSizeCommitLog, nor does -c FILE: {doubt}")
    gone = set(before.lost_bytes)
    given_up = [damage for damage in mended if damage in gone]
    _show(report, before.lost, given_up, [damage for damage in mended if damage not in gone])
    if repair and not report.is_whole and not is_told:
        # With another size than the broker's the log would be of no use to it any more.
        raise CommandFailed("SIZE_UNKNOWN", f"{folder} cannot be repaired: the size of its log files is unknown",
                            "set mappedFileSizeCommitLog of the broker in the file of -c")  # fmt: skip
    if not report.is_whole:
        return EXIT_FAILED
    return EXIT_PARTLY if given_up and before.lost else 0


def _config(folder: Path, config_file: Path | None) -> Sized:
    """Return the settings of a store: those of a file, or such as its files show."""
    from rocketcore.broker.store.config import StoreConfig
    from rocketcore.broker.store.verify import Sized, sized
    from rocketcore.config_file import load_config, read_properties

    properties = {} if config_file is None else dict(read_properties(config_file))
    config = load_config(StoreConfig, {**properties, "storePathRootDir": str(folder)})
    if not any((folder / part).exists() for part in PARTS) and not config.commit_log_folder.exists():
        what = "it is no store" if folder.exists() else "there is no such folder"
        raise CommandFailed(
            "STORE_NOT_EXIST", f"{folder}: {what}", f"a store has one of {', '.join(PARTS)}", exit_code=EXIT_NOT_FOUND
        )
    return Sized(config, is_told=True, doubt="") if "mappedFileSizeCommitLog" in properties else sized(config)


def _show(
    report: Report, lost_ranges: Iterable[LostMessages], given_up: Iterable[Damage], repaired: Iterable[Damage]
) -> None:
    """Print what was found; ``given_up`` are damaged bytes of the log, ``repaired`` is what was made anew."""
    lost: list[dict[str, Any]] = [
        {"topic": each.topic, "queue_id": each.queue_id, "from": each.start, "to": each.end} for each in lost_ranges
    ]
    row: dict[str, Any] = {
        "store": str(report.root),
        "whole": report.is_whole,
        "files": report.file_count,
        "bytes": report.read_bytes,
        "log_begin": report.log_begin,
        "log_end": report.log_end,
        "gone_from": report.gone_from,
        "queues": len(report.bounds),
        "messages": report.messages,
        "served": report.served,
        "unsaved": report.unsaved,
        "lost_messages": sum(each["to"] - each["from"] for each in lost),
    }
    damaged = [_damage(report.root, damage) for damage in report.damaged]
    mended = [_damage(report.root, damage) for damage in repaired]
    gone = [_damage(report.root, damage) for damage in given_up]
    aside = [
        {"file": _name(report.root, path), "position": position, "bytes": length}
        for path, position, length in report.put_aside
    ]
    lists = {"damaged": damaged, "lost": lost, "lost_bytes": gone, "put_aside": aside, "repaired": mended}
    if current().output == "csv":
        listed = [{"list": name, **each} for name, rows in lists.items() for each in rows]
        listed += [{"list": "remarks", "what": remark} for remark in report.remarks]
        more = ["kind", "file", "position", "what", "topic", "queue_id", "from", "to"]
        show_rows([{"list": "store", **row}, *listed], ["list", *row, *more])
        return
    if current().output not in ("table", "wide"):
        show_object({**row, **lists, "remarks": report.remarks})
        return
    show_object(row)
    places = ["kind", "file", "position", "bytes", "what"]
    tables: list[tuple[str, str, list[Column | str]]] = [
        ("repaired", "repaired", [*places]),
        ("damaged", "damaged", [*places]),
        ("lost", "lost", ["topic", Column("queue_id", "QUEUE"), "from", "to"]),
        ("lost_bytes", "lost from the log", [*places[1:]]),
        ("put_aside", "put aside by earlier starts", [*places[1:4]]),
    ]
    for name, title, columns in tables:
        if rows := lists[name]:
            show_title(title)
            show_rows(rows, columns)
    for remark in report.remarks:
        progress(f"note: {remark}")
    if report.damaged:
        progress(f"{counted_are(len(report.damaged), 'place')} damaged in {report.root}")


def _damage(root: Path, damage: Damage) -> dict[str, Any]:
    return {
        "kind": damage.kind,
        "file": _name(root, damage.path),
        "position": damage.position,
        "bytes": damage.length,
        "what": damage.what,
    }


def _name(root: Path, path: Path) -> str:
    """Return a path below the folder of the store; in full where it is elsewhere."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
