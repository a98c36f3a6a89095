"""The brokers of these tests say a lot of the damage that they are given; the judge listens, the terminal need not."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("rocketcore")
    handler = logging.NullHandler()
    logger.addHandler(handler)
    logger.propagate = False
    yield
    logger.propagate = True
    logger.removeHandler(handler)
