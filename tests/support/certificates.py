"""Certificates for tests of TLS.

Shell.
"""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.etcd_server import Certificates


def make_certificates(directory: Path, authority: str) -> Certificates:
    """An authority of its own, and a certificate of 127.0.0.1 for servers and clients."""
    now = dt.datetime.now(dt.UTC)

    def certificate(
        name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey
    ) -> x509.Certificate:
        is_authority = name == issuer
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            names = x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
            )
            builder = builder.add_extension(names, critical=False)
        return builder.sign(signer, hashes.SHA256())

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    files = Certificates(
        ca_file=directory / f"{authority}-ca.pem",
        certificate_file=directory / f"{authority}.pem",
        key_file=directory / f"{authority}-key.pem",
    )
    pem = serialization.Encoding.PEM
    files.ca_file.write_bytes(
        certificate(authority, authority_key, authority, authority_key).public_bytes(pem)
    )
    files.certificate_file.write_bytes(
        certificate("agent", key, authority, authority_key).public_bytes(pem)
    )
    files.key_file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
