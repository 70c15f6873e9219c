"""Ask a Prometheus: one instant query over its HTTP API."""

import ssl
from collections.abc import Mapping

import msgspec
import urllib3

from webhook.placement.objects.fields import JsonObject, mappings, printable, text
from webhook.reading.documents import BadInput

TIMEOUT = 30.0  # seconds
ADVICE = {401: "; specify --prometheus-token", 403: "; the token lacks the right to query", 404: "; check the URL"}


def ask(url: str, token: str, query: str) -> list[JsonObject]:
    """Return the samples of an instant query. Raises BadInput if Prometheus does not answer.

    TLS trusts the CAs of the system, or those of the file in SSL_CERT_FILE.
    """
    # A token from a file may contain line breaks. The library's error would quote the header.
    headers: Mapping[str, str] = {"Authorization": f"Bearer {''.join(token.split())}"} if token else {}
    try:
        with urllib3.PoolManager(ssl_context=ssl.create_default_context(), retries=False, timeout=TIMEOUT) as pool:
            address = f"{url.rstrip('/')}/api/v1/query"
            response = pool.request("GET", address, fields={"query": query}, headers=headers, redirect=False)
    except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
        raise BadInput(f"cannot reach it: {printable(str(error))}") from None
    try:
        answer = msgspec.json.decode(response.data, type=JsonObject)
    except msgspec.MsgspecError:
        answer = {}
    if response.status == 200 and text(answer, "status") == "success":
        return mappings(answer, "data", "result")
    said = text(answer, "error") or f"no response of Prometheus' API{ADVICE.get(response.status, '')}"
    raise BadInput(f"status {response.status}: {printable(said)}")
