"""Settings of the name server under RocketMQ's property names (Java: ``NamesrvConfig``, ``NettyServerConfig``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketcore.apache_settings import PROTECTION, asks_for_nothing
from rocketcore.config_file import (
    HIDDEN,
    config_properties,
    format_properties,
    home_folder,
    parse_properties,
    setting,
    update_config,
    write_properties,
)
from rocketcore.errors import ConfigError, NoPermission
from rocketcore.transport.server.admission import ConnectionSettings

__all__ = ["NAMESERVER_PORT", "NameServerConfig", "RunningConfig"]

NAMESERVER_PORT: Final = 9876

PROTECTED_PROPERTIES: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
"""The original's black list: names that no request may change."""

LIVE_PROPERTIES: Final = frozenset(
    {
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableShutdownGracefully",
        "enableTopicList",
        "notifyMinBrokerIdChanged",
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "shutdownWaitTimeSeconds",
        "slowRequestMillis",
        "supportActingMaster",
        "waitSecondsForService",
    }
)
"""What a request may change: what the server obeys at once, and nothing that decides whom the next start serves."""

LONGEST_WAIT_SECONDS: Final = 3600
"""What a peer asks for has to be what the next start, and the next stop, can live with."""
LONGEST_STOP_SECONDS: Final = 60
"""By request. A stop lasts as long as a peer likes that does not read its answers, so a peer does not say how long."""

WITHOUT_EFFECT: Final = {
    "clientRequestThreadPoolNums": "8",
    "clientRequestThreadPoolQueueCapacity": "50000",
    "clusterTest": "false",
    "defaultThreadPoolNums": "16",
    "defaultThreadPoolQueueCapacity": "10000",
    "enableControllerInNamesrv": "false",
    "productEnvName": "center",
    "serverAsyncSemaphoreValue": "64",
    "serverCallbackExecutorThreads": "0",
    "serverNettyWorkerGroupEnable": "true",
    "serverOnewaySemaphoreValue": "256",
    "serverPooledByteBufAllocatorEnable": "true",
    "serverSelectorThreads": "3",
    "serverSocketBacklog": "1024",
    "serverSocketRcvBufSize": "0",
    "serverSocketSndBufSize": "0",
    "serverWorkerThreads": "8",
    "unRegisterBrokerQueueCapacity": "3000",
    "useEpollNativeSelector": "false",
    "writeBufferHighWaterMark": "0",
    "writeBufferLowWaterMark": "0",
}
"""RocketMQ's other settings and their defaults: files and requests may set them, tools look for them, nothing obeys."""


def _home() -> Path:
    return Path(os.environ.get("ROCKETMQ_HOME") or home_folder())


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(ConnectionSettings):
    """What a name server is started with; ``listen_port`` 0 takes a free port."""

    rocketmq_home: Path = setting(help="folder that holds the files below", default_factory=_home)
    kv_config_path: Path | None = setting(
        None, "file of the key-value table; empty: namesrv/kvConfig.json under rocketmqHome"
    )
    config_store_path: Path | None = setting(
        None, "file for changed settings; empty: namesrv/namesrv.properties under rocketmqHome"
    )
    bind_address: str = setting("127.0.0.1", "address to listen on")
    listen_port: int = setting(NAMESERVER_PORT, "port to listen on; 0 takes a free one", least=0, most=65535)
    order_message_enable: bool = setting(False, "put orderTopicConf into route answers")
    return_order_topic_config_to_broker: bool = setting(True, "answer a registration with the ORDER_TOPIC_CONFIG table")
    scan_not_active_broker_interval: int = setting(
        5000, "time between two searches for silent brokers", unit="ms", least=1
    )
    support_acting_master: bool = setting(
        False, "if a broker has no master, show its slave with the smallest id as master"
    )
    enable_all_topic_list: bool = setting(True, "answer GET_ALL_TOPIC_LIST_FROM_NAMESERVER")
    enable_topic_list: bool = setting(True, "answer the topic lists by cluster and by unit")
    notify_min_broker_id_changed: bool = setting(
        False, "tell brokers with the same name when their smallest id changes"
    )
    need_wait_for_service: bool = setting(False, "refuse route requests right after the start")
    wait_seconds_for_service: int = setting(45, "how long to refuse them", unit="s", least=0, most=LONGEST_WAIT_SECONDS)
    delete_topic_with_broker_registration: bool = setting(
        False, "let a full registration remove topics of the broker that it does not name"
    )
    config_black_list: str = setting(
        "configBlackList;configStorePath;kvConfigPath", "settings that requests may not change, joined by ;"
    )
    server_channel_max_idle_time_seconds: int = setting(
        120, "time after which the server closes a silent connection", unit="s", least=1
    )
    enable_shutdown_gracefully: bool = setting(True, "answer received requests before closing the connections")
    shutdown_wait_time_seconds: int = setting(
        30, "longest time of a graceful stop", unit="s", least=0, most=LONGEST_WAIT_SECONDS
    )

    def __post_init__(self) -> None:
        ConnectionSettings.__post_init__(self)
        for name, file in (("kv_config_path", "kvConfig.json"), ("config_store_path", "namesrv.properties")):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.rocketmq_home / "namesrv" / file)

    @property
    def kv_file(self) -> Path:
        """Where the key-value table is kept."""
        assert self.kv_config_path is not None, "set when the object is made"
        return self.kv_config_path

    @property
    def properties_file(self) -> Path:
        """Where changed settings are kept."""
        assert self.config_store_path is not None, "set when the object is made"
        return self.config_store_path

    def refuses(self, name: str) -> bool:
        """Tell whether a property is on the black list, the operator's own or the original's."""
        return name in PROTECTED_PROPERTIES or name in {item.strip() for item in self.config_black_list.split(";")}


class RunningConfig:
    """The settings of a running name server: what it obeys, what its file holds beside that, and how both change."""

    def __init__(self, config: NameServerConfig, properties: Mapping[str, str]) -> None:
        self.config = config
        self._properties = dict(properties)
        self.bound_port: int | None = None
        """The port that the server has; ``listenPort`` may ask for a free one."""

    def text(self) -> str:
        """Return every setting, known or not, as sorted ``name=value`` lines; passwords are hidden."""
        shown = {
            name: HIDDEN if name.startswith("tls.") and name.endswith("Password") and value else value
            for name, value in self._all().items()
        }
        if self.bound_port is not None:
            shown["listenPort"] = str(self.bound_port)
        return format_properties(dict(sorted(shown.items())))

    def update(self, text: str) -> None:
        """Apply ``name=value`` lines and save the result; names that are not shown are ignored, as in RocketMQ.

        raises  ConfigError when the text does not parse or a value is out of range, NoPermission for a name that no
                request may change: nothing is applied
        """
        try:
            changes = parse_properties(text)
        except ConfigError:
            raise ConfigError("string2Properties error") from None
        if any(self.config.refuses(name) for name in changes):
            raise NoPermission(NoPermission.response_code, "Can not update config in black list.")
        if any(character in value for value in changes.values() for character in "\r\n"):
            raise ConfigError("a value may not hold a line break")
        shown = self._all()
        changes = {name: value for name, value in changes.items() if name in shown}
        self._check_live(changes)
        config = update_config(self.config, changes)
        if "shutdownWaitTimeSeconds" in changes and config.shutdown_wait_time_seconds > LONGEST_STOP_SECONDS:
            raise ConfigError(
                f"shutdownWaitTimeSeconds is 0 to {LONGEST_STOP_SECONDS} for a request, "
                f"got {config.shutdown_wait_time_seconds}"
            )
        properties = {**self._properties, **changes}
        write_properties(config.properties_file, {**properties, **config_properties(config)})
        self.config, self._properties = config, properties

    def _check_live(self, changes: Mapping[str, str]) -> None:
        """Refuse what this server obeys from its next start on, and what asks for what is not there.

        What it never obeys is kept and shown, as RocketMQ does.
        """
        obeyed = config_properties(self.config)
        for name, value in changes.items():
            if name in PROTECTION and not asks_for_nothing(name, value):
                raise NoPermission(NoPermission.response_code, f"{name}={value} asks for {PROTECTION[name][1]}")
            if name not in LIVE_PROPERTIES and (name in obeyed or name.startswith("tls.")):
                raise NoPermission(
                    NoPermission.response_code,
                    f"{name} is not changed by a request: it counts from the next start on, in its file",
                )

    def _all(self) -> dict[str, str]:
        return {**WITHOUT_EFFECT, **self._properties, **config_properties(self.config)}
