"""docs/configuration.md against the source: the settings of servers, clients and console, and what Apache's mean there.

``python -m tests.unit.test_configuration_page`` writes its tables anew. What Apache's have is in
``tests/vectors/settings.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

import click
import pytest

from rocketcore.apache_settings import APACHE, PROTECTION
from rocketcore.broker.config import LIVE_PROPERTIES, NEXT_START_PROPERTIES, BrokerConfig
from rocketcore.broker.store.config import StoreConfig
from rocketcore.cli.servers.console import console
from rocketcore.cli.shell.contexts import CONTEXT_KEYS
from rocketcore.cli.shell.options import NAMESRV_VARIABLES
from rocketcore.client.config import ClientConfig, ConsumerConfig, ProducerConfig
from rocketcore.config_file import config_properties, property_name
from rocketcore.nameserver import config as nameserver_config
from rocketcore.nameserver.config import NameServerConfig
from tests.fixtures.pages import PAGES, table_of, write_tables
from tests.fixtures.vectors import FOLDER

PAGE = PAGES / "configuration.md"
TEST = "tests.unit.test_configuration_page"
JAVA: dict[str, dict[str, str]] = json.loads((FOLDER / "settings.json").read_text("ascii"))
SERVERS: dict[str, tuple[type[Any], ...]] = {"name server": (NameServerConfig,), "broker": (BrokerConfig, StoreConfig)}
LIVE = {"name server": nameserver_config.LIVE_PROPERTIES, "broker": LIVE_PROPERTIES}
LATER = {"name server": frozenset[str](), "broker": NEXT_START_PROPERTIES}
NO_DEFAULT = {"brokerName": "the host name", "rocketmqHome": "`ROCKETMQ_HOME`, or the home folder",
              "storePathRootDir": "`store` in the home folder", "kvConfigPath": "", "configStorePath": ""}  # fmt: skip
"""Defaults that depend on the machine."""

SUBJECTS = {
    "RocksDB": "rocksdb|bottomMost|memTable|combineCQ|KVService|configManagerVersion",
    "copies, slaves, the controller": "^ha[a-z]|slave|controller|DLe[dg]|replica|(?<!s)elect|epoch|leader|inSync|"
    "syncState|^syncM|syncFrom|syncBroker|learner|brokerRole|haTransfer|brokerIdentity|preOnline|brokerContainer|brokerHeartbeat|"
    "brokerNotActive|brokerIP2|remoteEscape|inactiveMaster|sendHeartbeat",
    "access control": "^acl|^userC|auth|whitelist",
    "threads, and the queues before them": "thread|poolQueue|poolSize|queueCapacity|^waitTime|fastFailure|concurren",
    "connections": "^client|^server|netty|socks?|useEpoll|^writeBuffer|(?<!file)channel|goAway|"
    "connectTimeout|useTLS|reconnect|disableCallback|sharedByteBuffer|processReadEvent",
    "mapped memory, page cache, locks": "mapp?e[dr]|swap|pages|warm|mmap|storePool|cold|readAhead|heap|"
    "(?<!order)(?-i:Lock)|pageCache|commitCommitLog|commitInterval|fileChannel|inMemory|runningFlags",
    "light topics": "lite|lmq|multiDispatch",
    "compaction": "compaction|offsetMap",
    "metrics and statistics": "metric|stats|stat$|^stat|^commercial|^sample|estimate|print|diskFall|isolateLog",
    "POP": "pop|revive|(?-i:Ck[A-Z]|CK)|^append[AC]|longAwaitingAck",
    "timers and delays": "timer|schedule|maxDelay|delayOffset",
    "transactions": "^trans",
    "name servers": "name?s(?:rv|erver)|regist",
    "consume queues, index, recovery": "consumeQueue|cq|dispatch|index|reput|recover|^logic|correctLogic|bloom",
    "other": "",
}
"""What a setting of Apache's is about: the first pattern that its name has decides."""

CLIENTS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "clients": (ClientConfig, ("ClientConfig",)),
    "producers": (ProducerConfig, ("ClientConfig", "DefaultMQProducer")),
    "consumers": (ConsumerConfig, ("ClientConfig", "DefaultMQPushConsumer", "DefaultLitePullConsumer")),
}


def declared_by(classes: Iterable[type[Any]]) -> set[str]:
    return {property_name(declared) for cls in classes for declared in fields(cls)}


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def apaches(server: str, name: str, default: str) -> str:
    """Return Apache's default where it is another, ``–`` where there is no such setting, else nothing."""
    if name not in JAVA[server]:
        return "–"
    value = JAVA[server][name]
    return code(value) if value and name not in NO_DEFAULT and value != default else ""


def server_table(server: str) -> str:
    lines = ["| setting | default | Apache's | unit | live | |", "|---|---|---|---|---|---|"]
    for cls in SERVERS[server]:
        defaults = config_properties(cls())
        for declared in fields(cls):
            name, unit, text = property_name(declared), declared.metadata["unit"], declared.metadata["help"]
            default = NO_DEFAULT.get(name, code(defaults[name]))
            other = apaches(server, name, defaults[name])
            live = "yes" if name in LIVE[server] else "next start" if name in LATER[server] else ""
            lines.append(f"| `{name}` | {default} | {other} | {unit} | {live} | {text} |")
    return "\n".join(lines) + "\n"


def not_done(server: str) -> str:
    """Return the names of Apache's that have no effect, but for those that a start refuses, by what they are about."""
    names = APACHE["broker" if server == "broker" else "name server"] - declared_by(SERVERS[server]) - {*PROTECTION}
    about: dict[str, list[str]] = {subject: [] for subject in SUBJECTS}
    for name in sorted(names):
        about[next(subject for subject, pattern in SUBJECTS.items() if re.search(pattern, name, re.IGNORECASE))].append(
            name
        )
    rows = [f"| {subject} | {' · '.join(map(code, found))} |" for subject, found in about.items() if found]
    return "\n".join(["| about | settings |", "|---|---|", *rows]) + "\n"


def refused_table() -> str:
    lines = ["| setting | the only value that starts | what another one asks for |", "|---|---|---|"]
    for name, (harmless, asked) in PROTECTION.items():
        lines.append(f"| `{name}` | `{harmless[-1].upper() if '_' in harmless[-1] else harmless[-1]}` | {asked} |")
    return "\n".join(lines) + "\n"


def client_default(declared: Field[Any]) -> str:
    if declared.default is MISSING:
        return "none"
    value = declared.default
    if isinstance(value, tuple):
        return code(";".join(map(str, value))) or "none"
    return "" if value is None or value == "" else code(str(value))


def java_name(declared: Field[Any], classes: Iterable[str]) -> str:
    """Return Java's name of a setting and its default there; ``–`` where Java has none."""
    name = property_name(declared)
    found = [JAVA[cls][name] for cls in classes if name in JAVA[cls]]
    if not found:
        return code(name) if "." in name else "–"
    return code(name) + (f" {found[0]}" if found[0] else "")


def client_table(kind: str) -> str:
    cls, java = CLIENTS[kind]
    shared = {declared.name for declared in fields(ClientConfig)} if cls is not ClientConfig else set()
    lines = ["| argument | default | unit | Java's, and its default | |", "|---|---|---|---|---|"]
    for declared in fields(cls):
        if declared.name not in shared:
            unit, text = declared.metadata["unit"], declared.metadata["help"]
            lines.append(
                f"| `{declared.name}` | {client_default(declared)} | {unit} | {java_name(declared, java)} | {text} |"
            )
    return "\n".join(lines) + "\n"


def renamed() -> set[str]:
    """Return Java's settings for which docs/migrating.md names what replaces them."""
    section = (PAGES / "migrating.md").read_text("utf-8").split("## Settings\n")[1].split("\n## ")[0]
    consumer = (PAGES / "migrating.md").read_text("utf-8").split("## Consumer\n")[1].split("\n## ")[0]
    firsts = [line.split("|")[1] for line in (section + consumer).splitlines() if line.startswith("|")]
    return set(re.findall(r"`(\w+)`", " ".join(firsts)))


def java_only(kind: str) -> str:
    cls, java = CLIENTS[kind]
    names = {name for each in java for name in JAVA[each]} - declared_by([ClientConfig, cls]) - renamed()
    if kind == "clients":
        names -= declared_by([ProducerConfig, ConsumerConfig])
    else:
        names -= {*JAVA["ClientConfig"]}
    return " · ".join(code(name) for name in sorted(names)) + "\n"


def console_table() -> str:
    lines = ["| option | default | |", "|---|---|---|"]
    for parameter in console.params:
        if isinstance(parameter, click.Option) and parameter.expose_value:
            default = parameter.default if isinstance(parameter.default, str) else ""
            lines.append(f"| `{parameter.opts[0]}` | {code(default)} | {parameter.help} |")
    return "\n".join(lines) + "\n"


def tables() -> Mapping[str, str]:
    return {
        "name server settings": server_table("name server"),
        "broker settings": server_table("broker"),
        "settings that end a start": refused_table(),
        "name server settings without effect": not_done("name server"),
        "broker settings without effect": not_done("broker"),
        **{kind: client_table(kind) for kind in CLIENTS},
        **{f"Java's {kind}": java_only(kind) for kind in CLIENTS},
        "console": console_table(),
    }


@pytest.mark.parametrize("name", list(tables()))
def test_the_tables_say_what_the_source_says(name: str) -> None:
    assert table_of(PAGE, name, TEST) == tables()[name], f"python -m {TEST} writes it anew"


@pytest.mark.parametrize("server", list(SERVERS))
def test_a_live_setting_is_one_that_is_declared(server: str) -> None:
    assert declared_by(SERVERS[server]) >= LIVE[server]


def test_every_setting_says_what_it_is() -> None:
    classes = [*SERVERS["name server"], *SERVERS["broker"], ClientConfig, ProducerConfig, ConsumerConfig]
    mute = [f"{cls.__name__}.{each.name}" for cls in classes for each in fields(cls) if not each.metadata["help"]]
    assert not mute


def test_defaults_without_effect_are_apaches() -> None:
    """What a name server shows of settings that it does not obey is what Apache's would."""
    assert {name: JAVA["name server"][name] for name in nameserver_config.WITHOUT_EFFECT} == dict(
        nameserver_config.WITHOUT_EFFECT
    )


def test_what_the_command_reads_is_named() -> None:
    page = PAGE.read_text("utf-8")
    section = page.split("## The command\n")[1].split("\n## ")[0]
    assert {*NAMESRV_VARIABLES, *CONTEXT_KEYS} <= set(re.findall(r"`(\w+)`", section))


if __name__ == "__main__":
    write_tables(PAGE, tables(), TEST)
