"""Settings of TLS for servers, which are clients of one another, under RocketMQ's property names.

RocketMQ: ``TlsSystemConfig``, ``TlsHelper``, ``TlsMode``, ``TlsCertificateManager``.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rocketcore.config_file import BadSetting, load_config, read_properties, setting
from rocketcore.errors import ConfigError
from rocketcore.service import SYSTEM_CLOCK, Clock
from rocketcore.transport.tls.settings import TlsConfig, check_key, file_problem

__all__ = ["TLS_SETTINGS", "ServerCertificate", "ServerTls", "client_tls", "tls_properties"]

logger = logging.getLogger(__name__)

DEFAULT_CONFIG_FILE: Final = Path("/etc/rocketmq/tls.properties")
_RELOAD_CHECK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSwitches:
    """Whether servers use TLS where they are clients themselves, and where further settings are."""

    enable: bool = setting(False, "connect to other servers with TLS", property="tls.enable")
    config_file: Path | str | None = setting(
        None,
        "file with more tls.… settings; default: /etc/rocketmq/tls.properties if it exists",
        property="tls.config.file",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """How a server uses TLS, on the port that also takes plain connections.

    mode  ``disabled``: no TLS; ``permissive``: both; ``enforcing``: only TLS

    A permissive server without a usable certificate closes TLS connections and serves plain ones, as RocketMQ's does.
    In RocketMQ's test mode, off by default here, it makes a certificate of its own at each start.
    """

    mode: str = setting("permissive", "disabled, permissive or enforcing", property="tls.server.mode")
    cert_file: Path | str | None = setting(None, "the server's certificate chain, PEM", property="tls.server.certPath")
    key_file: Path | str | None = setting(
        None, "its private key, PEM; default: in the certificate's file", property="tls.server.keyPath"
    )
    key_password: str = setting("", "password of the key", property="tls.server.keyPassword", secret=True)
    ca_file: Path | str | None = setting(
        None,
        "certificates of the authorities of clients, PEM; default: the system's",
        property="tls.server.trustCertPath",
    )
    client_auth: str = setting(
        "none", "whether clients show a certificate: none, optional or require", property="tls.server.need.client.auth"
    )
    verify_clients: bool = setting(
        False,
        "verify these certificates; needed unless tls.server.need.client.auth is none",
        property="tls.server.authClient",
    )
    test_mode: bool = setting(
        False, "make a certificate at each start; it does not prove who the server is", property="tls.test.mode.enable"
    )

    def __post_init__(self) -> None:
        if self.mode not in ("disabled", "permissive", "enforcing"):
            raise BadSetting("tls.server.mode", repr(self.mode), "must be disabled, permissive or enforcing")
        if self.client_auth not in ("none", "optional", "require"):
            raise BadSetting("tls.server.need.client.auth", repr(self.client_auth), "must be none, optional or require")
        if self.mode == "disabled":
            return
        if self.test_mode and self.cert_file is not None:
            raise ConfigError("tls.test.mode.enable=true makes a certificate, so it excludes tls.server.certPath")
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("tls.server.keyPath needs tls.server.certPath: give the key with its certificate")
        if self.mode == "enforcing" and not self.has_certificate:
            raise ConfigError("tls.server.mode=enforcing needs tls.server.certPath: without it, no client can connect")
        if self.client_auth != "none" and not self.verify_clients:
            raise ConfigError(
                f"tls.server.need.client.auth={self.client_auth} needs tls.server.authClient=true: otherwise the "
                "server does not verify the certificates"
            )

    @property
    def has_certificate(self) -> bool:
        """Whether the server has, or makes, what TLS needs."""
        return self.mode != "disabled" and (self.test_mode or self.cert_file is not None)

    @property
    def files(self) -> tuple[Path | str, ...]:
        """The files that the context is made of."""
        return tuple(path for path in (self.cert_file, self.key_file, self.ca_file) if path is not None)

    def context(self) -> ssl.SSLContext:
        """Return OpenSSL's form of it; raises ConfigError for files that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            if self.test_mode:
                from rocketcore.transport.tls.self_signed import load_self_signed  # with tempfile, for tests only

                load_self_signed(context)
                logger.warning(
                    "TLS with a certificate made at this start (tls.test.mode.enable): it does not protect against "
                    "another server that answers here"
                )
            elif self.cert_file is not None:
                check_key(self.key_file or self.cert_file)
                context.load_cert_chain(self.cert_file, self.key_file, lambda: self.key_password)
            if self.client_auth != "none":
                context.verify_mode = ssl.CERT_OPTIONAL if self.client_auth == "optional" else ssl.CERT_REQUIRED
                if self.ca_file is not None:
                    context.load_verify_locations(self.ca_file)
                else:
                    context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the server's TLS files cannot be used: {file_problem(error, self.files)}") from error
        return context


class ServerCertificate:
    """A server's context, made anew when the files it is made of change; connections keep the one they began with.

    Files are looked at before a handshake, at most once a second. New ones that cannot be used, for example a
    certificate whose key is not there yet, are logged and the old context stays.
    """

    def __init__(self, config: ServerTls, clock: Clock = SYSTEM_CLOCK) -> None:
        self._config = config
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        self._seen: tuple[Any, ...] = ()
        self._checked_at = 0.0

    def load(self) -> None:
        """Make the context; raises ConfigError where a server that requires TLS has no usable certificate."""
        if not self._config.has_certificate:
            return
        try:
            self._make()
        except ConfigError as error:
            if self._config.mode == "enforcing":
                raise
            logger.error("TLS connections are refused until the files change reason=%s", error)

    def context(self) -> ssl.SSLContext | None:
        """Return the context for the next handshake; None: there is none."""
        if not self._config.has_certificate:
            return None
        now = self._clock.monotonic()
        if now - self._checked_at >= _RELOAD_CHECK_SECONDS:
            self._checked_at = now
            if self._stamps() != self._seen:
                self._reload()
        return self._context

    def _reload(self) -> None:
        try:
            self._make()
        except ConfigError as error:
            logger.error("TLS files changed and cannot be used; the old ones stay reason=%s", error)
        else:
            logger.info("TLS files loaded again cert=%s", self._config.cert_file)

    def _make(self) -> None:
        self._checked_at = self._clock.monotonic()
        # Before they are read: what changes meanwhile shows at the next look.
        self._seen = self._stamps()
        self._context = self._config.context()

    def _stamps(self) -> tuple[Any, ...]:
        return tuple(_stamp(path) for path in self._config.files)


def _stamp(path: Path | str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


TLS_SETTINGS: Final = (TlsSwitches, ServerTls, TlsConfig)
"""The classes that declare properties of a server's TLS."""


def tls_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties together with the ``tls.…`` ones of the file that ``tls.config.file`` names; the former win.

    Without one, /etc/rocketmq/tls.properties is read where it exists, as RocketMQ does.
    raises  ConfigError where the file that is named cannot be read
    """
    named = load_config(TlsSwitches, properties).config_file
    if named is None and not DEFAULT_CONFIG_FILE.is_file():
        return dict(properties)
    file = read_properties(named or DEFAULT_CONFIG_FILE)
    return {**{name: value for name, value in file.items() if name.startswith("tls.")}, **properties}


def client_tls(properties: Mapping[str, str]) -> TlsConfig | None:
    """Return how properties say to connect: TLS where ``tls.enable`` is true; in test mode nothing is verified."""
    if not load_config(TlsSwitches, properties).enable:
        return None
    config = load_config(TlsConfig, properties)
    if properties.get("tls.test.mode.enable", "").strip().lower() == "true":
        logger.error("tls.test.mode.enable=true: servers are not verified, so any server can answer in their place")
        config = replace(config, verify=False)
    return config
