"""How a command connects: from options, the environment and the context."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from rocketcore.cli.shell.options import Settings
from rocketcore.transport.tls.settings import TlsConfig


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No variables of the user, and a configuration folder of the test's."""
    for name in ("TLS", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_INSECURE", "CONTEXT"):
        monkeypatch.delenv(f"ROCKET_{name}", raising=False)
    monkeypatch.setattr(click, "get_app_dir", lambda *_, **__: str(tmp_path))
    return tmp_path


def test_no_tls_unless_it_is_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().tls is False
    monkeypatch.setenv("ROCKET_TLS", "false")
    assert Settings().tls is False


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(tls_option=True), TlsConfig()),
        (Settings(tls_ca=Path("ca.pem")), TlsConfig(ca_file=Path("ca.pem"))),
        (
            Settings(tls_cert=Path("me.pem"), tls_key=Path("me.key")),
            TlsConfig(cert_file=Path("me.pem"), key_file=Path("me.key")),
        ),
        (Settings(tls_insecure=True), TlsConfig(verify=False)),
    ],
)
def test_options(settings: Settings, expected: TlsConfig) -> None:
    assert settings.tls == expected


def test_variables_and_the_option_that_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKET_TLS", "1")
    assert Settings().tls == TlsConfig()
    monkeypatch.setenv("ROCKET_TLS_CA", "variable.pem")
    monkeypatch.setenv("ROCKET_TLS_INSECURE", "true")
    assert Settings().tls == TlsConfig(ca_file=Path("variable.pem"), verify=False)
    assert Settings(tls_ca=Path("option.pem")).tls == TlsConfig(ca_file=Path("option.pem"), verify=False)


def test_the_context(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clean / "config.toml").write_text(
        'current = "home"\n[contexts.home]\ntls = true\ntls_ca = "home.pem"\n[contexts.away]\ntls_insecure = true\n'
    )
    assert Settings().tls == TlsConfig(ca_file=Path("home.pem"))
    monkeypatch.setenv("ROCKET_CONTEXT", "away")
    assert Settings().tls == TlsConfig(verify=False)
