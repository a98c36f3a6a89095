"""Addresses as text and as records hold them."""

from __future__ import annotations

import pytest

from rocketcore.addresses import host_field, host_text, join, split


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("10.0.0.1:9", "10.0.0.1", 9), ("[::1]:0", "::1", 0), ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535)],
)
def test_addresses_are_joined_and_split(address: str, host: str, port: int) -> None:
    assert join(host, port) == address
    assert split(address) == (host, port)


def test_java_writes_ipv6_without_brackets() -> None:
    assert split("fe80:0:0:0:0:0:0:1:9") == ("fe80:0:0:0:0:0:0:1", 9)


@pytest.mark.parametrize("text", ["", "host", ":1", "[]:1", "host:", "host:x", "host:-1", "host:65536", "host:００"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        split(text)


@pytest.mark.parametrize(
    ("ip", "port", "encoded"),
    [
        ("127.0.0.1", 10911, "7f00000100002a9f"),
        ("::1", 1, "0000000000000000000000000000000100000001"),
        ("::ffff:10.0.0.1", 80, "0a00000100000050"),
        ("fe80::1%eth0", 80, "fe80000000000000000000000000000100000050"),
    ],
)
def test_hosts_are_encoded_as_records_hold_them(ip: str, port: int, encoded: str) -> None:
    assert host_field(ip, port).hex() == encoded


def test_hosts_are_read_from_records() -> None:
    assert host_text(bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])) == "127.0.0.1:10911"
    assert host_text(host_field("fe80::1", 9)) == "[fe80::1]:9"


def test_names_are_no_addresses() -> None:
    with pytest.raises(ValueError, match="localhost"):
        host_field("localhost", 1)
