"""The buffers of a sender: as few as are read at a time, and those of the last sender."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketcore.client import send_buffers
from rocketcore.client.send_buffers import KEPT_BUFFERS, SendBuffers


@pytest.fixture(autouse=True)
def none_kept() -> Iterator[None]:
    send_buffers._kept.clear()
    yield
    send_buffers._kept.clear()


def test_a_buffer_that_nobody_reads_is_used_again() -> None:
    buffers = SendBuffers(3)
    first = buffers.free()
    assert buffers.free() is first
    view = memoryview(first)
    second = buffers.free()
    assert second is not first
    view.release()
    assert buffers.free() is first
    assert len(buffers) == 2


def test_there_are_never_more_than_allowed() -> None:
    """What a connection that hangs still has to send is its own."""
    buffers = SendBuffers(2)
    views = []
    for number in range(10):
        view = memoryview(buffers.free())
        view[0] = number
        views.append(view)
        assert len(buffers) <= 2
    assert [view[0] for view in views] == list(range(10))


def test_the_next_sender_has_the_buffers_of_the_last() -> None:
    buffers = SendBuffers(2)
    first = buffers.free()
    with memoryview(first):
        second = buffers.free()
    buffers.release()
    assert len(buffers) == 0
    following = SendBuffers(2)
    with memoryview(following.free()):
        following.free()
    assert {*following._ring} == {first, second}


def test_what_is_still_read_is_not_the_next_senders() -> None:
    buffers = SendBuffers(2)
    first = buffers.free()
    with memoryview(first):
        buffers.release()
        assert SendBuffers(2).free() is not first


def test_a_process_keeps_few() -> None:
    buffers = SendBuffers(100)
    views = [memoryview(buffers.free()) for _ in range(20)]
    del views
    buffers.release()
    assert len(send_buffers._kept) == KEPT_BUFFERS
