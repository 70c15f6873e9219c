"""The TLS options of `serve`, which select the source of its certificate.

The source is a Secret that the replicas renew, a folder, or a self-signed CA for this run.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from certs.authority import BadCertificate
from certs.cluster import ApiClient
from certs.controller import CertificateController
from certs.rotation import Policy
from certs.serving import ServingCertificate, client_ca, self_signed_folder, temporary_folder
from webhook.commands.options import namespace_and_name, together

tls_options = together(
    click.option(
        "--tls-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="A folder with tls.crt, tls.key and ca.crt. The server reloads the files when they change. Default: "
        "self-signed files for this run, valid for a year.",
    ),
    click.option(
        "--tls-secret",
        metavar="NAMESPACE/NAME",
        help="Instead of --tls-dir: a Secret in which the replicas create and renew a CA and a certificate.",
    ),
    click.option(
        "--tls-name",
        "tls_names",
        multiple=True,
        metavar="DNS",
        help="A DNS name of the webhook for the certificate in the Secret. Can be repeated.",
    ),
    click.option(
        "--webhook-configuration",
        metavar="NAME",
        help="The MutatingWebhookConfiguration whose caBundle the replicas keep equal to ca.crt.",
    ),
    click.option(
        "--client-ca-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Accept only clients with a certificate from a CA in this file. The server reloads the file when it "
        "changes. Default: accept all clients.",
    ),
)


def certificate_problems(certificate: ServingCertificate, controller: CertificateController) -> dict[str, str]:
    """Return the certificate problems that don't stop the server, by component. Empty if there are none."""
    of_clients = certificate.client_ca.problem if certificate.client_ca else ""
    problems = {
        "serving certificate": certificate.problem,
        "client CA": of_clients,
        "certificates": controller.problem,
    }
    return {component: problem for component, problem in problems.items() if problem}


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The TLS options by name. Raises UsageError if they contradict each other or a value is out of range."""

    tls_dir: Path | None
    tls_secret: str | None
    tls_names: tuple[str, ...]
    webhook_configuration: str | None
    client_ca_file: Path | None = None

    def __post_init__(self) -> None:
        """Validate the options."""
        if self.tls_secret and self.tls_dir:
            raise click.UsageError("specify either --tls-secret or --tls-dir, not both")
        if self.secret and not self.tls_names:
            raise click.UsageError("--tls-secret requires --tls-name: the name by which the API server calls it")
        if self.tls_names and not self.tls_secret:
            raise click.UsageError("--tls-name requires --tls-secret: other certificates already have names")
        if self.webhook_configuration and not (self.tls_secret or self.tls_dir):
            raise click.UsageError(
                "--webhook-configuration requires --tls-secret or --tls-dir: a self-signed CA is not published"
            )
        self._policy()

    @property
    def secret(self) -> tuple[str, str] | None:
        """Namespace and name of the Secret, None without --tls-secret."""
        return namespace_and_name(self.tls_secret, "--tls-secret") if self.tls_secret is not None else None

    @contextmanager
    def certificate(
        self, names: tuple[str, ...], connect: Callable[[], ApiClient]
    ) -> Iterator[tuple[ServingCertificate, CertificateController]]:
        """Provide the serving certificate and its controller. Raises UnusableCertificate.

        `names` are the DNS names and IP addresses of a self-signed certificate. `connect` is called only if a cluster
        is needed.
        """
        with ExitStack() as stack:
            if self.tls_dir:
                folder = self.tls_dir
            elif self.secret:
                folder = stack.enter_context(temporary_folder())
            else:
                folder = stack.enter_context(self_signed_folder(names, datetime.now(UTC)))
            api: Any = connect() if self.secret or self.webhook_configuration else None
            controller = CertificateController(
                api, secret=self.secret, configuration=self.webhook_configuration, policy=self._policy(), folder=folder
            )
            trusted = client_ca(self.client_ca_file) if self.client_ca_file else None
            yield ServingCertificate(folder, awaited=self.secret is not None, client_ca=trusted), controller

    def _policy(self) -> Policy:
        try:
            return Policy(self.tls_names)
        except BadCertificate as error:
            raise click.UsageError(f"--tls-name: {error}") from None
