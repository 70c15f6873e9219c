"""Issue, store, publish and rotate the webhook's TLS certificates. Does not know the server that uses them.

rotation       decide which step is due, when and why, and take it: read this module first
secret         the content of the Secret, a bundle, and its encoding
authority      issue and read certificates, their names, and the CA that a certificate chains to
controller     the controller that repeats passes over the Secret and the caBundle, and sets the served pair
cluster        read and write the Secret and the MutatingWebhookConfiguration
files          the source of the served pair: memory, or the files of a folder
serving        the TLS context of the served pair and the CAs of clients, loaded again after a change
status         read what `certs status` and `doctor` report
"""

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class ApiError(Exception):
    """A failed request to the API server. `code` is the HTTP status, 0 without a response."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
