"""RocketMQ for asyncio: the same names as ``rocketcore``; what waits there is a coroutine here.

Nothing is imported or started before a name is used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketcore.admin.client import AsyncAdmin as Admin
    from rocketcore.client.faces.consumers import PullConsumer, PushConsumer, SimpleConsumer
    from rocketcore.client.faces.producer import Producer

_NAMES = {
    "Admin": ("rocketcore.admin.client", "AsyncAdmin"),
    "Producer": ("rocketcore.client.faces.producer", "Producer"),
    "PullConsumer": ("rocketcore.client.faces.consumers", "PullConsumer"),
    "PushConsumer": ("rocketcore.client.faces.consumers", "PushConsumer"),
    "SimpleConsumer": ("rocketcore.client.faces.consumers", "SimpleConsumer"),
}

__all__ = ["Admin", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _NAMES[name]
    value = getattr(_import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
