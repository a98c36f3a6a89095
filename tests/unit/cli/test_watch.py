"""What a waiting command says of its cluster."""

from __future__ import annotations

import pytest

from rocketcore.cli.messages.watch import Watch
from rocketcore.cli.shell.options import Settings
from rocketcore.errors import ConnectError


def test_each_change_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[Exception | None] = [None, None, ConnectError("x"), ConnectError("y\n\x1bz"), None, None]

    def ask() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    watch = Watch(ask, Settings())
    said: list[str] = []
    troubles: list[str | None] = []
    for _ in range(6):
        watch.probe()
        said.append(capsys.readouterr().err)
        troubles.append(None if watch.trouble is None else str(watch.trouble)[0])
    assert said == ["", "", "waiting for the cluster: x\n", "", "the cluster answers again\n", ""]
    assert troubles == [None, None, "x", "y", None, None]


def test_a_message_after_the_last_look_is_an_answer() -> None:
    def ask() -> None:
        raise ConnectError("x")

    watch = Watch(ask, Settings(quiet=True))
    watch.probe()
    assert str(watch.trouble) == "x"
    watch.heard()
    assert watch.trouble is None
