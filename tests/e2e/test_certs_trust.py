"""The API server accepts the certificates that `certs` issues, and rejects variants of them with one defect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from certs.authority import Issued, issue_ca, issue_leaf
from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.installation import Installation, Replica
from tests.support.paths import EXAMPLES
from tests.support.webhook_process import NAMESPACE

pytestmark = pytest.mark.controlplane

NAME = "handshakes"
HOST = f"{NAME}.{NAMESPACE}.svc"
NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def issue_for(purpose: x509.ObjectIdentifier, ca: Issued) -> Issued:
    """Issue a leaf for one purpose, like client authentication. `issue_leaf` issues only leaves for servers."""
    key, issuer = ec.generate_private_key(ec.SECP256R1()), x509.load_pem_x509_certificate(ca.certificate)
    signer = load_pem_private_key(ca.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    builder = (
        x509.CertificateBuilder(issuer.subject, issuer.subject, key.public_key(), 7, NOW, NOW + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(builder.sign(signer, SHA256()).public_bytes(Encoding.PEM), private)


# A certificate with one defect, and the error of an API server that trusts `ca`. Its position is the port's index.
DEFECTS: dict[str, tuple[Callable[[Issued], Issued], str]] = {
    "wrong name": (
        lambda ca: issue_leaf(ca, [f"other.{NAMESPACE}.svc"], NOW),
        f"x509: certificate is valid for other.{NAMESPACE}.svc, not {HOST}",
    ),
    "expired": (
        lambda ca: issue_leaf(ca, [HOST], NOW - 2 * DAY, DAY),
        "x509: certificate has expired or is not yet valid: current time .* is after",
    ),
    "not yet valid": (
        lambda ca: issue_leaf(ca, [HOST], NOW + DAY),
        "x509: certificate has expired or is not yet valid: current time .* is before",
    ),
    "unknown CA": (
        lambda _: issue_leaf(issue_ca(NOW, [HOST]), [HOST], NOW),
        "x509: certificate signed by unknown authority",
    ),
    "client purpose": (
        lambda ca: issue_for(x509.ExtendedKeyUsageOID.CLIENT_AUTH, ca),
        "x509: certificate specifies an incompatible key usage",
    ),
}
# The same certificate without the defect. `issue_for` is test code, so it issues this one, too. Otherwise, the API
# server could reject its certificates for another reason.
VALID: dict[str, Callable[[Issued], Issued]] = dict.fromkeys(DEFECTS, lambda ca: issue_leaf(ca, [HOST], NOW))
VALID["client purpose"] = lambda ca: issue_for(x509.ExtendedKeyUsageOID.SERVER_AUTH, ca)


class CertificateServer:
    """A replica that serves the certificate in its folder on the next connection."""

    def __init__(self, installation: Installation, folder: Path, authorities: list[Issued]) -> None:
        self._installation, self._folder = installation, folder
        self.authorities = authorities

    def create_pod(self, leaf: Issued, port: int) -> str:
        """Create a pod while the replica serves this certificate. Return the error of the API server; empty if none."""
        write(self._folder, leaf)
        try:
            self._installation.create_pod(port)
        except ApiError as error:
            return str(error)
        return ""


def write(folder: Path, leaf: Issued) -> None:
    (folder / "tls.crt").write_bytes(leaf.certificate)
    (folder / "tls.key").write_bytes(leaf.key)


@pytest.fixture(scope="module")
def server(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CertificateServer]:
    folder = tmp_path_factory.mktemp("served")
    # One port and one trusted CA per defect, and one more to wait until the API server calls the webhook.
    authorities = [issue_ca(NOW - 10 * DAY, [HOST]) for _ in range(len(DEFECTS) + 1)]
    (folder / "ca.crt").write_bytes(authorities[-1].certificate)
    write(folder, issue_leaf(authorities[-1], [HOST], NOW))
    installation = Installation(plane, NAME, len(authorities)).create_certificate_objects().create_service()
    installation.publish(*(one.certificate for one in authorities))
    snapshot = EXAMPLES / "cluster.yaml"
    try:
        with Replica(plane, f"{NAME}-0", Path("none"), f"--snapshot={snapshot}", f"--tls-dir={folder}") as replica:
            installation.route(replica.address)
            plane.wait(lambda: not installation.create_pod(len(DEFECTS)), 20, "a successful webhook call")
            yield CertificateServer(installation, folder, authorities)
    finally:
        installation.delete_certificate_objects()
        installation.delete_service()


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_api_server_rejects_a_defective_certificate_and_accepts_it_without_the_defect(
    server: CertificateServer, defect: str
) -> None:
    port = list(DEFECTS).index(defect)
    ca = server.authorities[port]
    issue, expected = DEFECTS[defect]
    error = server.create_pod(issue(ca), port)
    assert error.startswith("500 InternalError: Internal error occurred: failed calling webhook")
    assert re.search(expected, error)
    assert not server.create_pod(VALID[defect](ca), port)
