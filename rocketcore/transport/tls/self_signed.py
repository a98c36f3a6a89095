"""A server certificate made up at the start, as RocketMQ's test mode makes one (Java: ``SelfSignedCertificate``).

Nobody has signed it but itself, and it is another one after the next start, so nobody can tell it from that of whoever
answers in the server's place. Needs the library ``cryptography`` (``pip install 'rocketcore[tls]'``).
"""

from __future__ import annotations

import datetime
import os
import ssl
import tempfile
from pathlib import Path
from typing import Final

from rocketcore.errors import ConfigError

__all__ = ["load_self_signed"]

_VALID: Final = datetime.timedelta(days=365)
_CLOCK_SKEW: Final = datetime.timedelta(days=1)


def load_self_signed(context: ssl.SSLContext) -> None:
    """Give a server's context a new key and a certificate for localhost; on disk only while OpenSSL reads them.

    raises  ConfigError without the library
    """
    pem = _make_pem()
    with tempfile.TemporaryDirectory(prefix="rocketcore-tls-") as folder:
        path = Path(folder) / "server.pem"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
        context.load_cert_chain(path)


def _make_pem() -> bytes:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise ConfigError(
            "tls.test.mode.enable: to make a certificate takes the library cryptography: pip install 'rocketcore[tls]'"
        ) from None
    import ipaddress

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    hosts = [x509.DNSName("localhost"), *(x509.IPAddress(ipaddress.ip_address(ip)) for ip in ("127.0.0.1", "::1"))]
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
