"""Settings of TLS, the contexts made of them, and when a server makes a new one."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rocketcore.config_file import environment_properties, load_config, print_config, property_name, setting_variables
from rocketcore.errors import ConfigError
from rocketcore.service import ManualClock
from rocketcore.transport.tls import server_settings as tls
from rocketcore.transport.tls.server_settings import (
    TLS_SETTINGS,
    ServerCertificate,
    ServerTls,
    client_tls,
    tls_properties,
)
from rocketcore.transport.tls.session import TlsSession, failure_text
from rocketcore.transport.tls.settings import ClientTls, TlsConfig
from tests.fixtures.tls import CLIENT_CERTIFICATE, FOLDER, server_tls
from tests.fixtures.tls import client_tls as trusting

WRONG = "no PEM certificates and key, or a wrong password"
SERVER_PROPERTIES = {
    "tls.server.mode": "enforcing",
    "tls.server.certPath": str(FOLDER / "server.crt"),
    "tls.server.keyPath": str(FOLDER / "server-encrypted.key"),
    "tls.server.keyPassword": "secret",
    "tls.server.trustCertPath": str(FOLDER / "ca.crt"),
    "tls.server.need.client.auth": "require",
    "tls.server.authClient": "true",
    "tls.test.mode.enable": "false",
}


# Properties


def test_rocketmq_names_of_a_server() -> None:
    assert load_config(ServerTls, SERVER_PROPERTIES) == ServerTls(
        mode="enforcing",
        cert_file=FOLDER / "server.crt",
        key_file=FOLDER / "server-encrypted.key",
        key_password="secret",
        ca_file=FOLDER / "ca.crt",
        client_auth="require",
        verify_clients=True,
    )
    assert load_config(ServerTls, {}) == ServerTls(mode="permissive")


def test_rocketmq_names_of_a_client() -> None:
    properties = {
        "tls.enable": "true",
        "tls.client.trustCertPath": "ca.pem",
        "tls.client.certPath": "me.pem",
        "tls.client.keyPath": "me.key",
        "tls.client.keyPassword": "secret",
    }
    expected = TlsConfig(
        ca_file=Path("ca.pem"), cert_file=Path("me.pem"), key_file=Path("me.key"), key_password="secret"
    )
    assert client_tls(properties) == expected
    assert client_tls({**properties, "tls.enable": "false"}) is None
    assert client_tls({}) is None


def test_clients_verify_unless_told_otherwise() -> None:
    """RocketMQ's default is the other way round."""
    assert client_tls({"tls.enable": "true"}) == TlsConfig(verify=True, check_hostname=True)
    assert client_tls({"tls.enable": "true", "tls.client.authServer": "false"}) == TlsConfig(verify=False)
    assert client_tls({"tls.enable": "true", "tls.test.mode.enable": "true"}) == TlsConfig(verify=False)


def test_a_file_of_tls_properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.mode=enforcing\ntls.server.certPath=file.crt\nlistenPort=1\n")
    given = {"tls.config.file": str(file), "tls.server.certPath": "given.crt", "listenPort": "2"}
    assert tls_properties(given) == {**given, "tls.server.mode": "enforcing"}
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        tls_properties({"tls.config.file": str(tmp_path / "none")})
    monkeypatch.setattr(tls, "DEFAULT_CONFIG_FILE", tmp_path / "none")
    assert tls_properties({"a": "b"}) == {"a": "b"}
    monkeypatch.setattr(tls, "DEFAULT_CONFIG_FILE", file)
    assert tls_properties({})["tls.server.certPath"] == "file.crt"


def test_variables() -> None:
    environ = {
        "ROCKETCORE_TLS_SERVER_MODE": "enforcing",
        "ROCKETCORE_TLS_SERVER_CERT_PATH": "a.crt",
        "ROCKETCORE_TLS_SERVER_NEED_CLIENT_AUTH": "none",
        "ROCKETCORE_TLS_ENABLE": "true",
        "ROCKETCORE_TLS_CONFIG_FILE": "tls.properties",
        "ROCKETCORE_TLS_CLIENT_TRUST_CERT_PATH": "ca.crt",
    }
    assert environment_properties(setting_variables(TLS_SETTINGS), environ) == {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": "a.crt",
        "tls.server.need.client.auth": "none",
        "tls.enable": "true",
        "tls.config.file": "tls.properties",
        "tls.client.trustCertPath": "ca.crt",
    }


def test_the_page_names_every_setting() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "tls.md").read_text()
    named = set(re.findall(r"`(tls\.[a-zA-Z.]+)`", page))
    assert named - {"tls.properties"} == {property_name(field) for cls in TLS_SETTINGS for field in fields(cls)}


def test_passwords_are_not_shown() -> None:
    configs = load_config(ServerTls, SERVER_PROPERTIES), TlsConfig(key_password="secret")
    assert "secret" not in print_config(*configs)
    assert "secret" not in repr(configs)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"mode": "enforced"}, "tls.server.mode='enforced': must be disabled, permissive or enforcing"),
        ({"client_auth": "yes"}, "tls.server.need.client.auth='yes': must be none, optional or require"),
        ({"mode": "enforcing", "cert_file": None, "key_file": None}, "enforcing needs tls.server.certPath"),
        ({"cert_file": None}, "tls.server.keyPath needs tls.server.certPath"),
        ({"client_auth": "require"}, "needs tls.server.authClient=true"),
        ({"test_mode": True}, "tls.test.mode.enable=true makes a certificate"),
    ],
)
def test_settings_of_a_server_that_cannot_be_meant(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        server_tls(**wrong)


def test_a_misspelt_mode_is_no_permissive_server() -> None:
    """Where RocketMQ takes permissive for whatever it does not know."""
    with pytest.raises(ConfigError, match=r"tls\.server\.mode=.*: must be"):
        load_config(ServerTls, {"tls.server.mode": "ENFORCING "})


def test_a_key_without_a_certificate() -> None:
    with pytest.raises(ConfigError, match="give the key with its certificate"):
        TlsConfig(key_file=Path("a.key"))


# Contexts


def test_the_argument_tls() -> None:
    assert ClientTls.of(False) is None
    system = ClientTls.of(True)
    assert system is not None
    assert (system.context.verify_mode, system.context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert system.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert system.hostname("10.0.0.1") == "10.0.0.1"
    named = ClientTls.of(trusting(server_hostname="rocketmq.example"))
    assert named is not None
    assert named.hostname("10.0.0.1") == "rocketmq.example"
    context = ssl.create_default_context()
    given = ClientTls.of(context)
    assert given is not None
    assert given.context is context


@pytest.mark.parametrize(
    ("changes", "verify_mode", "check_hostname"),
    [
        ({}, ssl.CERT_REQUIRED, True),
        ({"check_hostname": False}, ssl.CERT_REQUIRED, False),
        ({"verify": False}, ssl.CERT_NONE, False),
    ],
)
def test_what_clients_verify(changes: dict[str, Any], verify_mode: ssl.VerifyMode, check_hostname: bool) -> None:
    context = trusting(**changes).context()
    assert (context.verify_mode, context.check_hostname) == (verify_mode, check_hostname)


@pytest.mark.parametrize("client_auth", ["none", "optional", "require"])
def test_what_servers_verify(client_auth: str) -> None:
    expected = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}[client_auth]
    config = server_tls(client_auth=client_auth, verify_clients=True, ca_file=FOLDER / "ca.crt")
    assert config.context().verify_mode == expected
    assert config.context().minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cert_file": Path("/nowhere/a.crt")}, "/nowhere/a.crt cannot be read"),
        ({"key_file": Path("/nowhere/a.key")}, "/nowhere/a.key cannot be read"),
        ({"key_file": FOLDER / "client.key"}, "the key is not that of the certificate"),
        ({"key_file": None}, WRONG),
        ({"cert_file": FOLDER / "README.md"}, WRONG),
        ({"key_file": FOLDER / "server-encrypted.key", "key_password": "wrong"}, WRONG),
        ({"key_file": FOLDER / "server-encrypted.key"}, WRONG),
    ],
)
def test_files_that_cannot_be_used(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"the server's TLS files cannot be used: {text}"):
        server_tls(**changes).context()
    changes = {"cert_file": FOLDER / "server.crt", "key_file": FOLDER / "server.key", **changes}
    with pytest.raises(ConfigError, match=f"the client's TLS files cannot be used: {text}"):
        trusting(**changes).context()


def test_an_encrypted_key_and_one_file_for_both(tmp_path: Path) -> None:
    server_tls(key_file=FOLDER / "server-encrypted.key", key_password="secret").context()
    both = tmp_path / "both.pem"
    both.write_bytes((FOLDER / "server.crt").read_bytes() + (FOLDER / "server.key").read_bytes())
    server_tls(cert_file=both, key_file=None).context()


# A server's certificate


def copied(folder: Path, name: str = "server") -> dict[str, Any]:
    for suffix in ("crt", "key"):
        shutil.copy(FOLDER / f"{name}.{suffix}", folder / f"tls.{suffix}")
    return {"cert_file": folder / "tls.crt", "key_file": folder / "tls.key"}


def test_files_are_looked_at_once_a_second_and_loaded_when_they_changed(tmp_path: Path) -> None:
    clock = ManualClock()
    certificate = ServerCertificate(server_tls(**copied(tmp_path)), clock)
    certificate.load()
    first = certificate.context()
    clock.advance(10)
    assert certificate.context() is first
    copied(tmp_path, "other-server")
    clock.advance(0.5)
    assert certificate.context() is first
    clock.advance(0.5)
    second = certificate.context()
    assert second is not first
    clock.advance(10)
    assert certificate.context() is second


@pytest.mark.parametrize("change", ["replaced", "rewritten", "touched"])
def test_every_kind_of_change_is_seen(tmp_path: Path, change: str) -> None:
    clock = ManualClock()
    files = copied(tmp_path)
    certificate = ServerCertificate(server_tls(**files), clock)
    certificate.load()
    first = certificate.context()
    before = os.stat(files["cert_file"])
    if change == "replaced":
        shutil.copy(files["cert_file"], tmp_path / "new")
        os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(tmp_path / "new", files["cert_file"])
    elif change == "rewritten":
        files["cert_file"].write_bytes(files["cert_file"].read_bytes() + b"\n")
        os.utime(files["cert_file"], ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(files["cert_file"], ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    clock.advance(1)
    assert certificate.context() is not first


@pytest.mark.parametrize("damage", ["missing", "half written", "another key"])
def test_files_that_cannot_be_used_change_nothing(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    files = copied(tmp_path)
    certificate = ServerCertificate(server_tls(**files), clock)
    certificate.load()
    first = certificate.context()
    if damage == "missing":
        files["cert_file"].unlink()
    elif damage == "half written":
        files["cert_file"].write_bytes((FOLDER / "server.crt").read_bytes()[:300])
    else:
        shutil.copy(FOLDER / "other-server.key", files["key_file"])
    for _ in range(5):
        clock.advance(1)
        assert certificate.context() is first
    assert caplog.text.count("TLS files changed and cannot be used; the old ones stay") == 1
    copied(tmp_path, "other-server")
    clock.advance(1)
    assert certificate.context() not in (None, first)


def test_a_server_without_certificate() -> None:
    certificate = ServerCertificate(ServerTls())
    certificate.load()
    assert certificate.context() is None
    disabled = ServerCertificate(server_tls("disabled"))
    disabled.load()
    assert disabled.context() is None


def test_damaged_files_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = copied(tmp_path)
    files["key_file"].write_text("no key")
    with pytest.raises(ConfigError, match="the server's TLS files cannot be used"):
        ServerCertificate(server_tls("enforcing", **files)).load()
    clock = ManualClock()
    permissive = ServerCertificate(server_tls("permissive", **files), clock)
    permissive.load()
    assert permissive.context() is None
    assert "TLS connections are refused until the files change" in caplog.text
    copied(tmp_path)
    clock.advance(1)
    assert permissive.context() is not None


# Sessions


def handshake(client: TlsSession, server: TlsSession, piece: int = 1 << 20) -> None:
    client.receive(b"")
    for _ in range(10):
        for source, target in ((client, server), (server, client)):
            data = source.take_outgoing()
            for start in range(0, len(data), piece):
                target.receive(data[start : start + piece])


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_session_from_handshake_to_end(piece: int) -> None:
    client = TlsSession(trusting(**CLIENT_CERTIFICATE).context(), server_hostname="localhost")
    server = TlsSession(server_tls().context(), server_side=True)
    handshake(client, server, piece)
    assert client.established
    assert server.established
    body = os.urandom(300_000)
    client.send(body)
    client.send(b"")
    encrypted = client.take_outgoing()
    assert client.take_outgoing() == b""
    pieces = [encrypted[start : start + 10_000 * piece] for start in range(0, len(encrypted), 10_000 * piece)]
    assert b"".join(server.receive(each) for each in pieces) == body
    assert not server.ended
    client.close()
    assert server.receive(client.take_outgoing()) == b""
    assert server.ended


def test_what_went_wrong_in_words() -> None:
    client = TlsSession(TlsConfig().context(), server_hostname="localhost")
    server = TlsSession(server_tls().context(), server_side=True)
    with pytest.raises(ssl.SSLError) as untrusted:
        handshake(client, server)
    assert failure_text(untrusted.value).startswith("certificate verify failed: unable to get local issuer certificate")
    # The client says why, in an alert.
    with pytest.raises(ssl.SSLError) as alert:
        server.receive(client.take_outgoing())
    assert "unknown ca" in failure_text(alert.value)
    with pytest.raises(ssl.SSLError) as other:
        TlsSession(trusting().context(), server_hostname="localhost").receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert failure_text(other.value) == "the peer does not speak TLS"


@pytest.mark.parametrize(("mode", "said"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_key_that_others_read(tmp_path: Path, mode: int, said: bool, caplog: pytest.LogCaptureFixture) -> None:
    key = tmp_path / "server.key"
    shutil.copy(FOLDER / "server.key", key)
    key.chmod(mode)
    server_tls(key_file=key).context()
    assert (f"private key that everybody may read path={key}" in caplog.text) == said


def test_a_key_that_others_write_is_refused(tmp_path: Path) -> None:
    """Whoever writes it is the server from the next handshake on."""
    key = tmp_path / "server.key"
    shutil.copy(FOLDER / "server.key", key)
    key.chmod(0o602)
    with pytest.raises(ConfigError, match=f"{key} holds a private key, and others may write it: chmod 600 {key}"):
        server_tls(key_file=key).context()
    with pytest.raises(ConfigError, match="others may write it"):
        TlsConfig(cert_file=FOLDER / "server.crt", key_file=key).context()


def test_a_certificate_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    certificate = ServerCertificate(ServerTls(mode="enforcing", test_mode=True))
    certificate.load()
    context = certificate.context()
    assert context is not None
    assert certificate.context() is context, "made once"
    assert caplog.text.count("it does not protect against another server") == 1


def test_a_certificate_of_its_own_takes_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'rocketcore[tls]'")):
        ServerTls(test_mode=True).context()


def test_a_client_that_verifies_nobody_says_so(caplog: pytest.LogCaptureFixture) -> None:
    client_tls({"tls.enable": "true", "tls.test.mode.enable": "true"})
    assert "servers are not verified" in caplog.text
