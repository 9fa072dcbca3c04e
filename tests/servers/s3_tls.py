"""Authority: signs certificates for TLS servers of tests, right ones and wrong ones. No server.

By the cryptography package, which moto brings: no program of the system is needed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.servers.s3_server import Tls

HOSTS = ("127.0.0.1",)
DAYS = (-1.0, 1.0)


class Authority:
    """A key and a certificate that says that it may sign others; all files lie in a folder.

    Args:
        folder: made if need be.
        name: what its certificate calls it; another one may have the same.
    """

    def __init__(self, folder: Path, name: str = "an authority of this test") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.pem = folder / "ca.pem"
        self._folder = folder
        self._name = _name(name)
        self._key = generate_private_key(SECP256R1())
        own = _build(self._name, self._name, self._key, (), (-9.0, 9.0), ca=True)
        self._own = own.sign(self._key, SHA256())
        self.pem.write_bytes(self._own.public_bytes(Encoding.PEM))

    def certify(
        self,
        name: str = "server",
        *,
        hosts: Sequence[str] = HOSTS,
        days: tuple[float, float] = DAYS,
        ca: bool = False,
    ) -> Tls:
        """Return files of a new key and its certificate.

        Args:
            name: what the certificate and the files are called.
            hosts: addresses and names that it is for.
            days: from when to when it is good, from now on.
            ca: whether it says that it may sign others.
        """
        key = generate_private_key(SECP256R1())
        signed = _build(_name(name), self._name, key, hosts, days, ca=ca).sign(self._key, SHA256())
        return _write(self._folder, name, key, signed, self.pem)


def self_signed(folder: Path) -> Tls:
    """Return files of a certificate that nobody signed but its own key."""
    key = generate_private_key(SECP256R1())
    name = _name("a server by itself")
    own = _build(name, name, key, HOSTS, DAYS, ca=False).sign(key, SHA256())
    return _write(folder, "itself", key, own, authority=folder / "itself.pem")


def _write(
    folder: Path,
    name: str,
    key: EllipticCurvePrivateKey,
    certificate: x509.Certificate,
    authority: Path,
) -> Tls:
    tls = Tls(authority, folder / f"{name}.pem", folder / f"{name}.key")
    tls.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
    tls.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return tls


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _build(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: tuple[float, float],
    *,
    ca: bool,
) -> x509.CertificateBuilder:
    begin, end = (datetime.now(UTC) + timedelta(days=day) for day in days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca, None), critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
