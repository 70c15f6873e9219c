"""The API server shakes hands with what we issue, and refuses each of its failing twins, over the same wire."""

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
    """Issue what `issue_leaf` does not: a certificate for another purpose."""
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


# What is shown to an API server that trusts `ca`, and what it says. In the order of the doors.
TWINS: dict[str, tuple[Callable[[Issued], Issued], str]] = {
    "another name": (
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
    "another CA": (
        lambda _: issue_leaf(issue_ca(NOW, [HOST]), [HOST], NOW),
        "x509: certificate signed by unknown authority",
    ),
    "for clients": (
        lambda ca: issue_for(x509.ExtendedKeyUsageOID.CLIENT_AUTH, ca),
        "x509: certificate specifies an incompatible key usage",
    ),
}
# Those that are made here and not by the product must fail for the reason that they are made for.
GOOD: dict[str, Callable[[Issued], Issued]] = dict.fromkeys(TWINS, lambda ca: issue_leaf(ca, [HOST], NOW))
GOOD["for clients"] = lambda ca: issue_for(x509.ExtendedKeyUsageOID.SERVER_AUTH, ca)


class Shown:
    """A server that shows whatever is put into its folder to whoever connects next."""

    def __init__(self, installation: Installation, folder: Path, authorities: list[Issued]) -> None:
        self._installation, self._folder = installation, folder
        self.authorities = authorities

    def create(self, leaf: Issued, door: int) -> str:
        """Create a pod while this certificate is shown, and return what the API server complains of."""
        write(self._folder, leaf)
        try:
            self._installation.create(door)
        except ApiError as error:
            return str(error)
        return ""


def write(folder: Path, leaf: Issued) -> None:
    (folder / "tls.crt").write_bytes(leaf.certificate)
    (folder / "tls.key").write_bytes(leaf.key)


@pytest.fixture(scope="module")
def shown(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("shown")
    # Each twin has a door of its own, where its CA is trusted, and one more to see that the API server knows of us.
    authorities = [issue_ca(NOW - 10 * DAY, [HOST]) for _ in range(len(TWINS) + 1)]
    (folder / "ca.crt").write_bytes(authorities[-1].certificate)
    write(folder, issue_leaf(authorities[-1], [HOST], NOW))
    installation = Installation(plane, NAME, len(authorities)).make().open()
    installation.publish(*(one.certificate for one in authorities))
    snapshot = EXAMPLES / "cluster.yaml"
    try:
        with Replica(plane, f"{NAME}-0", Path("none"), f"--snapshot={snapshot}", f"--tls-dir={folder}") as replica:
            installation.call(replica.address)
            plane.wait(lambda: not installation.create(len(TWINS)), 20, "a call")
            yield Shown(installation, folder, authorities)
    finally:
        installation.unmake()
        installation.close()


@pytest.mark.parametrize("twin", TWINS)
def test_the_api_server_calls_nobody_whom_it_can_not_trust(shown: Shown, twin: str) -> None:
    door = list(TWINS).index(twin)
    ca = shown.authorities[door]
    issue, complaint = TWINS[twin]
    said = shown.create(issue(ca), door)
    assert said.startswith("500 InternalError: Internal error occurred: failed calling webhook")
    assert re.search(complaint, said)
    assert not shown.create(GOOD[twin](ca), door)
