"""Whether a group pulls or pops a topic, as an admin said (Java: ``MessageRequestModeManager``, 5.5.0).

File  ``config/messageRequestMode.json``: ``{"messageRequestModeMap": {topic: {group: mode}}}``, saved at each change. A
      mode is the body of the request that said it.
"""

from __future__ import annotations

import logging
from typing import Any

from rocketcore.broker.state.json_file import JsonFile, drop_misfits
from rocketcore.errors import BrokerSystemError
from rocketcore.protocol.bodies.pop import MessageRequestModeSerializeWrapper, SetMessageRequestModeRequestBody

__all__ = ["CAPACITY", "RequestModes"]

logger = logging.getLogger(__name__)

CAPACITY = 100_000
"""Pairs of topic and group that are kept."""


class RequestModes:
    """Modes by topic and group."""

    def __init__(self, file: JsonFile) -> None:
        self.file = file
        self._modes: dict[tuple[str, str], SetMessageRequestModeRequestBody] = {}

    def load(self) -> None:
        """Read the file; what is missing or malformed was never said."""
        self._modes = self.file.load(_parse) or {}

    def find(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        return self._modes.get((topic, group))

    def set(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Keep what an admin says; raises BrokerSystemError where there is no room for it."""
        key = mode.topic, mode.consumer_group
        if key not in self._modes and len(self._modes) >= CAPACITY:
            raise BrokerSystemError(
                BrokerSystemError.response_code, f"{CAPACITY} groups have a request mode, no more are kept"
            )
        self._modes[key] = mode

    def encode(self) -> bytes:
        """The table as the file holds it and as request 402 answers it."""
        table: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}
        for (topic, group), mode in self._modes.items():
            table.setdefault(topic, {})[group] = mode
        return MessageRequestModeSerializeWrapper(table).encode()


def _parse(text: dict[str, Any]) -> dict[tuple[str, str], SetMessageRequestModeRequestBody]:
    if not isinstance(text.get("messageRequestModeMap"), dict):
        raise ValueError("messageRequestMode.json has no messageRequestModeMap")
    for topic, groups in text["messageRequestModeMap"].items():
        for group, misfits in drop_misfits(SetMessageRequestModeRequestBody, groups):
            logger.warning(
                "request mode takes defaults for numbers that do not fit topic=%s group=%s numbers=%s",
                *(topic, group, misfits),
            )
    table = MessageRequestModeSerializeWrapper.from_json(text).message_request_mode_map
    return {(topic, group): mode for topic, groups in table.items() for group, mode in groups.items()}
