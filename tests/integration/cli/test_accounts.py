"""``rocket user`` and ``acl`` on brokers that have no accounts, and what never is an argument."""

from __future__ import annotations

import json

import pytest

from tests.fixtures.commands import Rocket


@pytest.mark.parametrize(
    "arguments",
    [
        ["user", "list"],
        ["user", "show", "ann"],
        ["user", "create", "ann", "--password-env", "ANNS"],
        ["user", "update", "ann", "--status", "disable"],
        ["user", "delete", "ann", "--yes"],
        ["acl", "list"],
        ["acl", "grant", "ann", "Topic:t", "Pub"],
        ["acl", "revoke", "ann", "--yes"],
        ["acl", "account", "list"],
        ["acl", "account", "put", "ann", "--password-env", "ANNS"],
        ["acl", "account", "delete", "ann", "--yes"],
        ["acl", "account", "white", "10.0.0.1", "--yes"],
    ],
)
def test_ours_have_none(rocket: Rocket, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setenv("ANNS", "secret-1")
    code, out, err = rocket(*arguments, "-o", "json")
    error = json.loads(err.splitlines()[-1])["error"]
    assert (code, out, error["code"]) == (1, "", "NO_ACCOUNTS")
    assert "docs/tls.md" in error["hint"]


def test_a_password_is_named(rocket: Rocket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANNS", raising=False)
    assert rocket("user", "create", "ann", stdin=b"")[0] == 2
    code, _, err = rocket("user", "create", "ann", "--password-env", "ANNS")
    assert (code, "the variable is not set" in err) == (2, True)
    assert rocket("user", "update", "ann", stdin=b"")[0] == 2
    assert rocket("acl", "grant", "ann", "Topic:t", "Fly")[0] == 2
    assert rocket("user", "list", "--broker", "nobody")[0] == 3
