"""Scenarios of connections, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from rocketcore.service import SYSTEM_CLOCK
from rocketcore.transport.server.listener import open_listener
from tests.unit.transport.reactor_place import Place, Scenario


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    def run(scenario: Scenario, host: str = "127.0.0.1") -> None:
        async def bounded() -> None:
            place = Place()
            place.listener = await open_listener(host, 0, place.make, monotonic=SYSTEM_CLOCK.monotonic)
            try:
                async with asyncio.timeout(20):
                    await scenario(place)
            finally:
                place.listener.close()
                for protocol in place.protocols:
                    if protocol.transport is not None:
                        protocol.transport.abort()
                await asyncio.gather(*(protocol.lost for protocol in place.protocols))
                place.listener.end()

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run
