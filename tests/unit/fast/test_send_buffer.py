"""Memory whose readers are counted."""

from __future__ import annotations

import pytest

from rocketcore._fast.send_buffer import SendBuffer


def test_what_is_written_is_read() -> None:
    buffer = SendBuffer(1000)
    assert (len(buffer), buffer.size, buffer.readers) == (1000, 1000, 0)
    with memoryview(buffer) as view:
        view[:3] = b"abc"
    with memoryview(buffer) as view:
        assert bytes(view[:3]) == b"abc"
    assert buffer.readers == 0


def test_views_of_views_are_readers() -> None:
    buffer = SendBuffer(100)
    view = memoryview(buffer)
    half = view[:50].toreadonly()
    rest = half.cast("B")[10:]
    view.release()
    del half
    assert buffer.readers == 1
    assert rest.readonly
    del rest
    assert buffer.readers == 0


def test_the_memory_outlives_its_last_name() -> None:
    buffer = SendBuffer(1 << 20)
    view = memoryview(buffer)
    view[-1] = 7
    del buffer
    assert view[-1] == 7


@pytest.mark.parametrize("size", [0, -1])
def test_wrong_sizes(size: int) -> None:
    with pytest.raises(ValueError, match=f"a buffer of {size} bytes"):
        SendBuffer(size)


def test_no_memory() -> None:
    with pytest.raises(MemoryError):
        SendBuffer(1 << 62)
