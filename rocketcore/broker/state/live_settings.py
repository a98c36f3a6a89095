"""Settings that were changed while the broker ran, kept over its restart.

File  ``config/liveSettings.json``: ``{"properties": {name: text}}`` with names that request 25 may change, saved at
each change.

They win over the file of ``-c``, the environment and options: they are the newest. RocketMQ writes them into the file
of ``-c`` itself (``Configuration.update``); that one belongs to whoever deploys it, and may be read-only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rocketcore.apache_settings import (
    APACHE,
    FROM_THE_NEXT_START_ON,
    PROTECTION,
    WITHOUT_EFFECT_HERE,
    asks_for_nothing,
)
from rocketcore.broker.config import LIVE_PROPERTIES, NEXT_START_PROPERTIES, BrokerConfig
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.broker.state.topic_config import MOST_QUEUES
from rocketcore.broker.store import StoreConfig
from rocketcore.config_file import BadSetting, config_properties, property_names, update_config
from rocketcore.errors import ConfigError
from rocketcore.service import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

_LONGEST_REFUSAL_MILLIS = 86_400_000
_NOT_BY_REQUEST: Final = ("acl", "addr", "auth", "blacklist", "credential", "dir", "home", "password", "path", "tls")
"""What the names of RocketMQ's settings have that are a path, an address or a secret, or decide who may do what."""
_OWN: Final = {*property_names(BrokerConfig), *property_names(StoreConfig)}
WITHOUT_EFFECT: Final = frozenset(
    name
    for name in APACHE["broker"] - _OWN
    if name in PROTECTION or not any(word in name.lower() for word in _NOT_BY_REQUEST)
)
"""What request 25 takes as RocketMQ does, keeps and shows, though nothing here obeys it."""


BY_REQUEST: Final = {
    "channelExpiredTimeout": (60_000, 86_400_000),
    "cleanResourceInterval": (1_000, 3_600_000),
    "defaultTopicQueueNums": (1, MOST_QUEUES),
    "deleteCommitLogFilesInterval": (0, 60_000),
    "diskSpaceCleanForciblyRatio": (50, 100),
    "diskSpaceWarningLevelRatio": (50, 100),
    "flushConsumeQueueThoroughInterval": (10, 600_000),
    "flushConsumerOffsetInterval": (10, 600_000),
    "flushDelayOffsetInterval": (10, 600_000),
    "flushIntervalCommitLog": (1, 60_000),
    "flushIntervalConsumeQueue": (1, 60_000),
    "maxMessageSize": (1_000, 512 << 20),
    "maxMsgsNumBatch": (1, 10_000),
    "maxPendingConnectionBytes": (1 << 16, 1 << 40),
    "maxTransferBytesOnMessageInDisk": (1_000, 64 << 20),
    "maxTransferBytesOnMessageInMemory": (1_000, 64 << 20),
    "pullThreadPoolQueueCapacity": (100, 100_000_000),
    "redeleteHangedFileInterval": (1_000, 86_400_000),
    "registerBrokerTimeoutMills": (1_000, 300_000),
    "syncFlushTimeout": (100, 600_000),
    "transactionCheckInterval": (100, 86_400_000),
}
"""From and to what a request may set what a file may set further: beyond, the broker refuses its clients, loses the
name servers, or a crash or a full disk takes far more."""


class LiveSettings:
    """The changes, by RocketMQ's property names; ``file`` is written by the broker's ``StateWriter``."""

    def __init__(self, file: JsonFile, clock: Clock = SYSTEM_CLOCK) -> None:
        self.file = file
        self._clock = clock
        self._properties: dict[str, str] = {}

    def load(self, config: BrokerConfig) -> BrokerConfig:
        """Return the configuration with what an earlier run was told."""

        def parse(saved: dict[str, Any]) -> BrokerConfig:
            properties = saved.get("properties")
            if not isinstance(properties, dict):
                raise ValueError("it holds no properties")
            kept = {name: str(text) for name, text in properties.items()}
            kept = {name: text for name, text in kept.items() if may_change(name, text)}
            changed = update_config(config, kept, strict=True)
            self._properties = kept
            return changed

        changed = self.file.load(parse)
        if changed is None or not self._properties:
            return config
        logger.info("settings changed live apply path=%s names=%s", self.file.path, ",".join(sorted(self._properties)))
        return changed

    def load_store(self, config: StoreConfig) -> StoreConfig:
        """Return the store's configuration with what an earlier run was told, unless the rest forbids it now."""
        try:
            return update_config(config, self._properties, strict=True)
        except ConfigError as error:
            logger.warning("settings of the store as they are without %s: %s", self.file.path, error)
            return config

    def change(self, config: BrokerConfig, store: StoreConfig, properties: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration with these changes, which ``may_change`` allows, as far as they count now.

        raises  ConfigError for a value that does not parse, or with which this run and the next would serve nobody
        """
        update_config(store, {**self._properties, **properties}, strict=True)
        update_config(config, properties, strict=True)
        for name in properties.keys() & BY_REQUEST.keys():
            least, most = BY_REQUEST[name]
            if not least <= int(properties[name]) <= most:
                raise BadSetting(
                    name,
                    properties[name].strip(),
                    f"a request sets it to {least} to {most}, a file of -c to others too",
                )
        live = {name: text for name, text in properties.items() if name in LIVE_PROPERTIES}
        changed = update_config(config, live, strict=True)
        if changed.start_accept_send_request_time_stamp > self._clock.time_millis() + _LONGEST_REFUSAL_MILLIS:
            raise ConfigError(
                "startAcceptSendRequestTimeStamp is at most a day ahead where it is changed by a request, got "
                f"{changed.start_accept_send_request_time_stamp}"
            )
        self._properties |= properties
        return changed

    def shown(self) -> dict[str, str]:
        """Return what was changed and never counts."""
        return {name: text for name, text in self._properties.items() if name in WITHOUT_EFFECT}

    def pending(self, config: BrokerConfig, store: StoreConfig) -> dict[str, str]:
        """Return what differs from the next start on; ``config`` and ``store`` are what is in effect."""
        kept = {name: text for name, text in self._properties.items() if name in NEXT_START_PROPERTIES}
        now = config_properties(config, store)
        try:
            later = config_properties(update_config(config, kept), update_config(store, kept))
        except ConfigError:  # the store does without them then
            later = config_properties(update_config(config, kept), store)
        return {name: later[name] for name in sorted(kept) if later[name] != now[name]}

    def encode(self) -> bytes:
        return json.dumps({"properties": dict(sorted(self._properties.items()))}).encode()


def may_change(name: str, value: str) -> bool:
    """Tell whether a request may change a setting to a value; none asks for protection that is not there."""
    if name in PROTECTION:
        return asks_for_nothing(name, value)
    return name in LIVE_PROPERTIES or name in NEXT_START_PROPERTIES or name in WITHOUT_EFFECT


def when_it_counts(names: Iterable[str]) -> str | None:
    """Say which of these changes do not count at once; None where all do."""
    parts = []
    for text, some in ((FROM_THE_NEXT_START_ON, NEXT_START_PROPERTIES), (WITHOUT_EFFECT_HERE, WITHOUT_EFFECT)):
        if found := sorted(some.intersection(names)):
            parts.append(f"{text}: {', '.join(found)}")
    return "; ".join(parts) or None
