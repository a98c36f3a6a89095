"""Settings of TLS for clients, and the contexts made of them; a server's are in ``server_settings``.

RocketMQ: ``TlsSystemConfig``, ``TlsHelper``.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rocketcore.config_file import setting
from rocketcore.errors import ConfigError

if TYPE_CHECKING:
    import ssl

__all__ = ["ClientTls", "TlsConfig", "TlsOption", "check_key", "file_problem"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """How a client uses TLS: by default it verifies the server's certificate and that it is for the host asked for.

    RocketMQ's own clients verify neither unless told to, and never the host. Brokers are mostly addressed by IP, so
    their certificates need these addresses (``subjectAltName=IP:…``), or all of them one ``server_hostname``.
    """

    ca_file: Path | str | None = setting(
        None,
        "certificates of the authorities to trust, PEM; default: the system's",
        property="tls.client.trustCertPath",
    )
    cert_file: Path | str | None = setting(
        None, "the client's own certificate chain, PEM", property="tls.client.certPath"
    )
    key_file: Path | str | None = setting(
        None, "its private key, PEM; default: in the certificate's file", property="tls.client.keyPath"
    )
    key_password: str = setting("", "password of the key", property="tls.client.keyPassword", secret=True)
    verify: bool = setting(True, "verify the server's certificate", property="tls.client.authServer")
    check_hostname: bool = setting(
        True, "require that the certificate names the host", property="tls.client.checkHostname"
    )
    server_hostname: str = setting(
        "", "name that certificates carry instead of the host's", property="tls.client.serverHostname"
    )

    def __post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("tls.client.keyPath needs tls.client.certPath: give the key with its certificate")

    def context(self) -> ssl.SSLContext:
        """Return OpenSSL's form of it; raises ConfigError for files that cannot be used."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        try:
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
            elif self.verify:
                context.load_default_certs()
            if self.cert_file is not None:
                check_key(self.key_file or self.cert_file)
                context.load_cert_chain(self.cert_file, self.key_file, lambda: self.key_password)
        except (OSError, ValueError) as error:
            files = (self.ca_file, self.cert_file, self.key_file)
            raise ConfigError(f"the client's TLS files cannot be used: {file_problem(error, files)}") from error
        return context


TlsOption: TypeAlias = "bool | TlsConfig | ssl.SSLContext"
"""The argument ``tls`` of clients: off, on with the system's authorities, settings, or a context of the caller's.
A text, since commands start without ssl."""


class ClientTls:
    """One client's context, and the name by which it knows a server."""

    __slots__ = ("_server_hostname", "context")

    def __init__(self, option: TlsConfig | ssl.SSLContext | bool) -> None:
        config = TlsConfig() if isinstance(option, bool) else option
        self._server_hostname = ""
        if isinstance(config, TlsConfig):
            self._server_hostname = config.server_hostname
            self.context = config.context()
        else:
            self.context = config

    @classmethod
    def of(cls, option: TlsOption | None) -> ClientTls | None:
        """Return what the argument ``tls`` means; None: no TLS."""
        if option is None or option is False:
            return None
        return cls(option)

    def hostname(self, host: str) -> str:
        """Return the name that the certificate of ``host`` has to carry."""
        return self._server_hostname or host


def check_key(path: Path | str) -> None:
    """Refuse a key that somebody else may replace, and say of one that everybody may read.

    raises  ConfigError; OSError where there is no such file
    """
    found = os.stat(path)
    writable = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != os.getegid())
    if writable:
        raise ConfigError(f"{path} holds a private key, and others may write it: chmod 600 {path}")
    if found.st_mode & stat.S_IROTH:
        logger.warning("private key that everybody may read path=%s remedy=chmod 600", path)


def file_problem(error: Exception, files: Iterable[Path | str | None]) -> str:
    """Say what is wrong with TLS files: OpenSSL names neither file nor cause in words."""
    import ssl

    for path in files:
        if path is not None and not os.access(path, os.R_OK):
            return f"{path} cannot be read"
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is not that of the certificate"
        return f"no PEM certificates and key, or a wrong password ({error.reason or error})"
    return str(getattr(error, "strerror", None) or error)
