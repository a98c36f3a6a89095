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

logger = logging.getLogger(__name__)


class LiveSettings:
    """The changes, by RocketMQ's property names; ``file`` is written by the broker's ``StateWriter``."""

    def __init__(self, file: JsonFile) -> None:
        self.file = file
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
        """Return the configuration with these changes; raises ConfigError for a value that does not parse."""
        changed = update_config(config, properties, strict=True)
        self._properties |= properties
        return changed

    def encode(self) -> bytes:
        return json.dumps({"properties": dict(sorted(self._properties.items()))}).encode()
