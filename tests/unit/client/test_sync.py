"""The blocking clients, as far as they are more than a facade."""

from __future__ import annotations

import asyncio
import threading

import pytest

import rocketcore
from rocketcore.errors import ConfigError
from rocketcore.transport.tls.settings import TlsConfig


@pytest.mark.parametrize("kind", [rocketcore.PushConsumer, rocketcore.PullConsumer])
def test_a_block_that_is_not_entered_leaves_no_thread(
    kind: type[rocketcore.PushConsumer | rocketcore.PullConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = kind(group="never-entered")

    def start() -> None:
        consumer._run(asyncio.sleep(0))
        raise KeyboardInterrupt

    monkeypatch.setattr(consumer, "start", start)
    with pytest.raises(KeyboardInterrupt), consumer:
        pass
    assert "consumer-never-entered" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("kind", [rocketcore.PushConsumer, rocketcore.PullConsumer])
def test_a_consumer_that_cannot_be_set_up_says_why_and_closes(
    kind: type[rocketcore.PushConsumer | rocketcore.PullConsumer],
) -> None:
    consumer = kind(group="g", tls=TlsConfig(ca_file="no-such-file"))
    for _ in range(2):
        with pytest.raises(ConfigError, match="no-such-file"):
            consumer.start()
    with pytest.raises(ConfigError, match="no-such-file"), consumer:
        pass
    consumer.close()
