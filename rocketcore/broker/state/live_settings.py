"""Settings that were changed while the broker ran, kept over its restart.

File  ``config/liveSettings.json``: ``{"properties": {name: text}}`` with names of ``LIVE_PROPERTIES``, saved at each
change.

They win over the file of ``-c``, the environment and options: they are the newest. RocketMQ writes them into the file
of ``-c`` itself (``Configuration.update``); that one belongs to whoever deploys it, and may be read-only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from rocketcore.broker.config import LIVE_PROPERTIES, BrokerConfig
from rocketcore.broker.state.json_file import JsonFile
from rocketcore.config_file import update_config
from rocketcore.errors import ConfigError
from rocketcore.service import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

_LONGEST_REFUSAL_MILLIS = 86_400_000


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
            kept = {name: str(text) for name, text in properties.items() if name in LIVE_PROPERTIES}
            changed = update_config(config, kept, strict=True)
            self._properties = kept
            return changed

        changed = self.file.load(parse)
        if changed is None or not self._properties:
            return config
        logger.info("settings changed live apply path=%s names=%s", self.file.path, ",".join(sorted(self._properties)))
        return changed

    def change(self, config: BrokerConfig, properties: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration with these changes.

        raises  ConfigError for a value that does not parse, or with which this run and the next would serve nobody
        """
        changed = update_config(config, properties, strict=True)
        if changed.start_accept_send_request_time_stamp > self._clock.time_millis() + _LONGEST_REFUSAL_MILLIS:
            raise ConfigError(
                "startAcceptSendRequestTimeStamp is at most a day ahead where it is changed by a request, got "
                f"{changed.start_accept_send_request_time_stamp}"
            )
        self._properties |= properties
        return changed

    def encode(self) -> bytes:
        return json.dumps({"properties": dict(sorted(self._properties.items()))}).encode()
