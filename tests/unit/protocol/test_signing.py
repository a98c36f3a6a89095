"""Signatures against those of the Java hook."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.signing import ACCESS_KEY, SIGNATURE, Signer, sign, signed_content, verify
from tests.fixtures.vectors import family, name_of


def request_of(record: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    # Java signs a null value as the text null; here a field without a value is not there at all.
    ext_fields = {name: "null" if text is None else text for name, text in record["ext"].items()}
    return ext_fields, bytes.fromhex(record["input"]["body"] or "")


@pytest.mark.parametrize("record", family("acl.jsonl", "hook/"), ids=name_of)
def test_signature_of_java(record: dict[str, Any]) -> None:
    ext_fields, body = request_of(record)
    assert signed_content(ext_fields, body).hex() == record["content"]
    secret = record["input"]["secretKey"]
    assert sign(ext_fields, body, secret) == record["signature"]
    assert verify({**ext_fields, SIGNATURE: record["signature"]}, body, secret)


def test_older_servers_leave_one_field_out() -> None:
    ext_fields = {ACCESS_KEY: "ak", "_UNIQUE_KEY_QUERY": "true", "topic": "T"}
    assert signed_content(ext_fields) == b"aktrueT"
    assert signed_content(ext_fields, without_unique_key_query=True) == b"akT"
    signature = sign(ext_fields, b"", "sk", without_unique_key_query=True)
    assert verify({**ext_fields, SIGNATURE: signature}, b"", "sk", without_unique_key_query=True)
    assert not verify({**ext_fields, SIGNATURE: signature}, b"", "sk")


def test_a_changed_request_does_not_verify() -> None:
    ext_fields = {ACCESS_KEY: "ak", "topic": "T"}
    ext_fields[SIGNATURE] = sign(ext_fields, b"body", "sk")
    assert verify(ext_fields, b"body", "sk")
    assert not verify(ext_fields, b"bodz", "sk")
    assert not verify(ext_fields, b"body", "other")
    assert not verify({**ext_fields, "topic": "U"}, b"body", "sk")
    assert not verify({**ext_fields, SIGNATURE: ""}, b"body", "sk")
    assert not verify({**ext_fields, SIGNATURE: "é"}, b"body", "sk")
    assert not verify({ACCESS_KEY: "ak"}, b"body", "sk")


def test_signer_signs_what_is_there() -> None:
    command = RemotingCommand.request(105, body=b"x")
    Signer("ak", "sk", "token")(command)
    assert command.ext_fields is not None
    assert command.ext_fields.keys() == {"AccessKey", "SecurityToken", "Signature"}
    assert verify(command.ext_fields, b"x", "sk")
    command.add_ext_field("topic", "T")
    Signer("ak", "sk", "token")(command)
    assert verify(command.ext_fields, b"x", "sk")
    assert "sk" not in repr(Signer("ak", "sk"))
