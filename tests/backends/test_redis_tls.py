"""Certificates and keys of the wrong kind are told at once, with the option that names them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.io_path.lab import within
from unikv.errors import StoreError
from unikv.registry import open_store


def key_pem(phrase: bytes | None = None) -> bytes:
    how = serialization.BestAvailableEncryption(phrase) if phrase else serialization.NoEncryption()
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, how)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "key").write_bytes(key_pem())
    (tmp_path / "locked").write_bytes(key_pem(b"a pass phrase"))
    (tmp_path / "text").write_text("no certificate")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("ca_certs={}/text", "ca_certs= is no file of certificates in PEM"),
        ("ca_certs={}/empty", "ca_certs= is no file of certificates in PEM"),
        ("ca_certs={}/folder", "ca_certs= is no file of certificates in PEM"),
        ("ca_certs={}/key", "ca_certs= is no file of certificates in PEM"),
        ("certfile={}/text&keyfile={}/key", "certfile= and keyfile=: want a certificate and"),
        ("certfile={}/key&keyfile={}/key", "certfile= and keyfile=: want a certificate and"),
        ("certfile={}/folder", "certfile= and keyfile=: want a certificate and"),
    ],
)
def test_files_of_the_wrong_kind_are_told(files: Path, options: str, says: str) -> None:
    url = f"rediss://127.0.0.1:1/0?{options.replace('{}', str(files))}"
    with within(1), pytest.raises(StoreError, match=says):
        open_store(url)


def test_a_key_with_a_pass_phrase_asks_nobody(files: Path) -> None:
    """OpenSSL would ask the terminal, for as long as it takes."""
    certificate = _self_signed(files)
    url = f"rediss://127.0.0.1:1/0?certfile={certificate}&keyfile={files}/locked"
    with within(1), pytest.raises(StoreError, match="keyfile= has a pass phrase"):
        open_store(url)


def _self_signed(folder: Path) -> Path:
    key = serialization.load_pem_private_key((folder / "key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return path
