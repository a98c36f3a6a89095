"""Who answers which request: the rows of a name server, of a broker and of clients, as they are when these run."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from rocketcore.broker.broker import Broker
from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store import StoreConfig
from rocketcore.client.requests import Requests
from rocketcore.client.runtime import ASYNCIO
from rocketcore.client.serving import serve_broker_requests
from rocketcore.nameserver.config import NameServerConfig
from rocketcore.nameserver.server import NameServer
from rocketcore.service import SYSTEM_CLOCK
from rocketcore.transport.routes import Route, Routes

__all__ = ["Rows", "broker_routes", "client_routes", "example", "nameserver_routes"]


class Rows:
    """What takes rows as the connections of a client do; ``table`` is by code."""

    def __init__(self, table: Routes) -> None:
        self.table = table

    def add_routes(self, rows: Any) -> None:
        self.table.add(rows)


@cache
def nameserver_routes() -> dict[int, Route]:
    with tempfile.TemporaryDirectory() as folder:
        return NameServer(NameServerConfig(rocketmq_home=Path(folder)))._server._endpoint.routes


@cache
def broker_routes() -> dict[int, Route]:
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(BrokerConfig(), StoreConfig(store_path_root_dir=Path(folder)))
        broker._register_handlers()
        return broker._server._endpoint.routes


@cache
def client_routes() -> dict[int, Route]:
    rows: Any = Rows(Routes())
    nobody: Any = None
    serve_broker_requests(rows, nobody)
    Requests(nobody, rows, ASYNCIO, SYSTEM_CLOCK)
    return rows.table


def example(route: Route, named: dict[str, str], *, missing: str = "x") -> dict[str, str]:
    """Return ext fields for a request: what is required, and what ``named`` names; all of that where no header is."""
    if route.header is None:
        return named
    return {
        field.wire_name: named.get(field.wire_name, {"bool": "false", "str": missing}.get(field.kind, "0"))
        for field in route.header.FIELDS
        if field.required or field.wire_name in named
    }
