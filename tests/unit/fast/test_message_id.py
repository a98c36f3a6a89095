"""Offset message ids against those that Apache RocketMQ's Java classes make."""

from __future__ import annotations

import ipaddress
from typing import Any

import numpy as np
import pytest

from rocketcore._fast import message_id as kernel
from tests.fixtures.vectors import family, name_of


@pytest.mark.parametrize("record", family("ids.jsonl", "offset/"), ids=name_of)
def test_offset_ids(record: dict[str, Any]) -> None:
    address, _, port = record["input"]["storeHost"].rpartition(":")
    host, offset = ipaddress.ip_address(address).packed + int(port).to_bytes(4), record["input"]["offset"]
    assert kernel.offset_msg_id(host, offset).decode() == record["expected"]
    assert kernel.offset_msg_ids(host, np.array([offset, offset])).decode() == ",".join([record["expected"]] * 2)


def test_ids_of_no_message_and_of_a_wrong_host() -> None:
    assert kernel.offset_msg_ids(bytes(8), np.zeros(0, np.int64)) == b""
    with pytest.raises(ValueError, match="host"):
        kernel.offset_msg_id(b"123", 0)
    with pytest.raises(ValueError, match="host"):
        kernel.offset_msg_ids(b"123", np.zeros(1, np.int64))
