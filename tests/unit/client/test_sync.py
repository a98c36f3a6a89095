"""The blocking clients, as far as they are more than a facade."""

from __future__ import annotations

import threading

import pytest

import rocketcore


@pytest.mark.parametrize("kind", [rocketcore.PushConsumer, rocketcore.PullConsumer])
def test_a_block_that_is_not_entered_leaves_no_thread(
    kind: type[rocketcore.PushConsumer | rocketcore.PullConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = kind(group="never-entered")

    def start() -> None:
        consumer._run(consumer._call(int))
        raise KeyboardInterrupt

    monkeypatch.setattr(consumer, "start", start)
    with pytest.raises(KeyboardInterrupt), consumer:
        pass
    assert "consumer-never-entered" not in {thread.name for thread in threading.enumerate()}
