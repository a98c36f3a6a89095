"""``rocket broker start --shards N``: N brokers on one machine, a process each, so that they use N cores.

A shard is a broker of its own, which routes spread over as over any other: number 0 to N-1, name ``NAME-0``, messages
in ``STORE/NAME-0``, port ten higher each. They have numbers and not the letters of ``rocket up``, as the members of a
StatefulSet have them: there may be more than 26, and the number says which port. ``supervisor.py`` runs them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketcore.addresses import ports_beside
from rocketcore.cli.shell.failures import EXIT_NOT_ALLOWED, CommandFailed

if TYPE_CHECKING:
    from rocketcore.broker.config import BrokerConfig
    from rocketcore.broker.store.config import StoreConfig

__all__ = ["Shard", "check_reach", "shards_of"]

_RECORD_HEAD: Final = 8
"""Bytes at the begin of a record, its size and magic number, that are zeros where there is none."""


class Shard(NamedTuple):
    """The settings of one of several brokers."""

    config: BrokerConfig
    store: StoreConfig

    @property
    def name(self) -> str:
        return self.config.broker_name


def shards_of(config: BrokerConfig, store: StoreConfig, count: int) -> list[Shard]:
    """Return the settings of each shard; what has to differ is made of the common setting, all else is equal.

    raises  ConfigError where there are not as many ports
    """
    ports = ports_beside(config.listen_port, count)
    metrics_ports = [-1] * count if config.metrics_port < 0 else ports_beside(config.metrics_port, count)
    return [
        _shard(replace(config, listen_port=port, metrics_port=metrics_port), store, number)
        for number, (port, metrics_port) in enumerate(zip(ports, metrics_ports, strict=True))
    ]


def _shard(config: BrokerConfig, store: StoreConfig, number: int) -> Shard:
    name = f"{config.broker_name}-{number}"
    log = store.store_path_commit_log
    return Shard(
        replace(config, broker_name=name),
        replace(
            store,
            store_path_root_dir=store.root / name,
            store_path_commit_log=None if log is None else log / name,
        ),
    )


def check_reach(config: BrokerConfig, store: StoreConfig, count: int) -> None:
    """Raise CommandFailed where there are messages below the store that none of ``count`` brokers would serve.

    1 is the one broker without shards, whose store is the folder itself.
    """
    served = count if count > 1 else 0
    unserved = [_shard(config, store, number).store for number in _numbers(config, store) if number >= served]
    if count > 1:
        unserved.append(store)
    logs = [each.commit_log_folder for each in unserved if _holds_messages(each.commit_log_folder)]
    if logs:
        what = "a broker without shards" if count == 1 else f"{count} shards"
        raise CommandFailed(
            "OUT_OF_REACH",
            f"{what} of the name {config.broker_name} would leave out the messages in {', '.join(map(str, logs))}",
            "start as many shards as before, or start without these messages with --leave-messages",
            exit_code=EXIT_NOT_ALLOWED,
        )


def _numbers(config: BrokerConfig, store: StoreConfig) -> list[int]:
    """Return the numbers of all shards that have a folder."""
    name = re.compile(re.escape(config.broker_name) + r"-(0|[1-9][0-9]{0,8})")
    parents = {store.root, store.store_path_commit_log or store.root}
    names = {path.name for parent in parents if parent.is_dir() for path in parent.iterdir()}
    return sorted(int(match[1]) for match in map(name.fullmatch, names) if match)


def _holds_messages(folder: Path) -> bool:
    """Whether a log has a record at the begin of any file: a broker that took no message leaves files of zeros."""
    if not folder.is_dir():
        return False
    for path in folder.iterdir():
        if path.name.isdecimal() and path.is_file():
            with path.open("rb") as file:
                if file.read(_RECORD_HEAD).strip(b"\0"):
                    return True
    return False
