"""Ask a Prometheus: an instant or a range query over its HTTP API."""

import ssl
import time
from urllib.parse import unquote

import msgspec
import urllib3

from webhook.cluster.client import cause_of
from webhook.placement.objects.fields import JsonObject, mappings, printable, text
from webhook.reading.documents import BadInput

TIMEOUT = 30.0  # seconds, for the whole answer
MAX_ANSWER = 64 << 20  # bytes; the traffic of 10,000 VMs takes some megabytes
PART = 64 << 10  # bytes of one read
ADVICE = {401: "; specify --prometheus-token", 403: "; the token lacks the right to query", 404: "; check the URL"}


def ask(  # noqa: PLR0913 (the parts of a request)
    url: str, token: str, query: str, seconds: int = 0, step: int = 1, *, timeout: float = TIMEOUT
) -> list[JsonObject]:
    """Return the samples of a query now, or every `step` of the last `seconds`. Raises BadInput without an answer.

    TLS trusts the CAs of the system, or those of the file in SSL_CERT_FILE.
    """
    address = f"{url.rstrip('/')}/api/v1/query"
    fields = {"query": query}
    if seconds:
        end = int(time.time()) // step * step
        address += "_range"
        fields |= {"start": str(end - seconds), "end": str(end), "step": str(step)}
    try:
        user = urllib3.util.parse_url(url).auth
        headers = urllib3.make_headers(basic_auth=unquote(user)) if user else {}
        # A token from a file may contain line breaks.
        headers |= {"Authorization": f"Bearer {''.join(token.split())}"} if token else {}
        with urllib3.PoolManager(ssl_context=ssl.create_default_context(), retries=False, timeout=timeout) as pool:
            response = pool.request(
                "GET", address, fields=fields, headers=headers, redirect=False, preload_content=False
            )
            content = _read(response, timeout)
    except BadInput:
        raise
    except (urllib3.exceptions.HTTPError, ValueError, OSError) as error:
        raise BadInput(f"cannot reach it: {cause_of(error)}") from None
    try:
        answer = msgspec.json.decode(content, type=JsonObject)
    except msgspec.MsgspecError:
        answer = {}
    if response.status == 200 and text(answer, "status") == "success":
        return mappings(answer, "data", "result")
    said = text(answer, "error") or f"no response of Prometheus' API{ADVICE.get(response.status, '')}"
    raise BadInput(f"status {response.status}: {printable(said)}")


def _read(response: urllib3.BaseHTTPResponse, timeout: float) -> bytes:
    """Read a response. It isn't unpacked: a packed megabyte may take a gigabyte. Raises BadInput for an endless one."""
    content = bytearray()
    end = time.monotonic() + timeout
    # Each byte restarts the timeout of a read, so take what has arrived instead of a full part.
    while part := response.read1(PART, decode_content=False):
        content += part
        if len(content) > MAX_ANSWER:
            raise BadInput(f"its response exceeds {MAX_ANSWER >> 20} MiB")
        if time.monotonic() > end:
            raise BadInput(f"its response takes longer than {timeout:.0f} s")
    return bytes(content)
