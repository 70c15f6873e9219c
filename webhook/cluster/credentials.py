"""The credentials for an API server: of a kubeconfig, or of the pod's service account.

Only this module imports `kubernetes`, which reads kubeconfigs: their credentials, TLS trust and proxies. A pod needs
none of that, so it doesn't import the library, which takes 0.4 s and 16 MB. The library's informer can't hold custom
resources. Its `Watch` turns a 410 into a KeyError unless `Watch` builds typed models, and typed models drop unknown
fields.
"""

import os
import socket
import ssl
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import urllib3
from msgspec import Struct, field
from msgspec.structs import replace
from urllib3.connection import HTTPConnection
from urllib3.util.ssl_ import create_urllib3_context

from certs import ApiError
from webhook.placement.objects.fields import JsonObject, mapping, text


class ClusterError(ApiError):
    """A failed request to the API server. `code` is the HTTP status, 0 without a response."""


# Connections: one for each watch, and a few for lists, reads and Events.
POOL_SIZE = 16
# The kernel probes a silent connection. So the watches of a server that vanished without a word, as by a power cut, end
# after 20 s. Those of client-go end after 45 s (http.go of k8s.io/apimachinery).
KEEP_ALIVE = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *[
        (socket.IPPROTO_TCP, getattr(socket, name), seconds)
        for name, seconds in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ],
]
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def _make_pool(**options: Any) -> urllib3.PoolManager:
    # The caller decides when to retry.
    return _trusting_as_go(urllib3.PoolManager(retries=False, maxsize=POOL_SIZE, socket_options=KEEP_ALIVE, **options))


def _trusting_as_go(pool: urllib3.PoolManager) -> urllib3.PoolManager:
    """Accept the CAs that kubelet and kubectl accept, such as one without a key usage extension.

    From Python 3.13 on, the default also sets VERIFY_X509_STRICT: https://github.com/kubernetes-client/python/issues/2394
    """
    options = pool.connection_pool_kw
    context = create_urllib3_context(cert_reqs=options.get("cert_reqs"), verify_flags=ssl.VERIFY_X509_PARTIAL_CHAIN)
    if not (options.get("ca_certs") or options.get("ca_cert_data")):
        context.load_default_certs()
    options["ssl_context"] = context
    return pool


class Api(Struct, frozen=True):
    """An API server with credentials. `authorization` returns the header of the next request, or an empty string."""

    url: str
    pool: urllib3.PoolManager = field(default_factory=_make_pool)
    authorization: Callable[[], str] = str


class Credentials(Struct, frozen=True):
    """An API server, and the user and the default namespace of its requests."""

    api: Api
    namespace: str = "default"
    user: str = ""  # another user to impersonate
    groups: tuple[str, ...] = ()  # of that user
    name: str = ""  # the kubeconfig's context; empty in a pod


def find_credentials(kubeconfig: str | None = None, context: str | None = None) -> Credentials:
    """Find the credentials: in the given kubeconfig, else in the default one, else in the pod's service account.

    Raises ClusterError if no credentials are usable.
    """
    default = _default_files()
    # Unlike a Path's, these functions don't raise: without a home, or for a file in a folder of another user.
    exist = (os.path.isfile(os.path.expanduser(file)) for file in default.split(os.pathsep))  # noqa: PTH111, PTH113
    if kubeconfig or context or any(exist):
        return _of_kubeconfig(kubeconfig or default, context)
    return Credentials(pod_api(f"no kubeconfig {default}"))


def _of_kubeconfig(files: str, context: str | None) -> Credentials:
    if find_spec("kubernetes") is None:  # as in the image
        problem = "reading a kubeconfig requires the Python package kubernetes, which the image does not have"
        raise ClusterError(0, f"no cluster credentials: kubeconfig {files}: {problem}")
    contexts, current = _contexts(files)
    name = context or current
    fields = contexts.get(name, {})
    api = _kubeconfig_api(files, name or None)
    if token := text(fields, "tokenFile"):
        file = Path(text(fields, "folder"), token)
        api = replace(api, authorization=lambda: f"Bearer {file.read_text()}")
    # If the program fails, the library only logs why, and would send every request without credentials.
    program = text(fields, "exec", "command")
    certificate = api.pool.connection_pool_kw.get("cert_file")
    if program and not (certificate or api.authorization()):
        raise ClusterError(0, f"no cluster credentials: kubeconfig {files}: {program} failed (see above)")
    namespace = str(fields.get("namespace") or "default")
    return Credentials(api, namespace, text(fields, "as"), tuple(map(str, fields.get("as-groups") or ())), name)


# The library also raises these for an unusable kubeconfig, besides its own exception and PyYAML's.
_FILE_ERRORS = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


def _contexts(files: str) -> tuple[dict[str, JsonObject], str]:
    """Return each context with the fields of its user, and the current one. Both are empty for an unusable file.

    Loading the credentials reports it. Unlike kubectl, the library lists no context without a current one, takes that
    of the last file, ignores whom a user impersonates, and reads a token file once:
    https://github.com/kubernetes/kubernetes/blob/v1.37.2/staging/src/k8s.io/client-go/tools/clientcmd/loader.go
    """
    import yaml  # noqa: PLC0415 (as the library below)
    from kubernetes.config import ConfigException, kube_config  # noqa: PLC0415 (a replica in a pod doesn't need it)

    try:
        merged: Any = kube_config.KubeConfigMerger(files)  # type: ignore[no-untyped-call]
        users = {
            text(each.value, "name"): mapping(each.value, "user") | {"folder": str(Path(each.path).parent)}
            for each in merged.config.value["users"]
        }
        found = {
            text(each, "name"): users.get(text(each, "context", "user"), {}) | mapping(each, "context")
            for each in (node.value for node in merged.config.value["contexts"])
        }
        current = (str(each.get("current-context") or "") for each in merged.config_files.values())
        return found, next(filter(None, current), "")
    except (ConfigException, yaml.YAMLError, *_FILE_ERRORS):
        return {}, ""


def context_names(kubeconfig: str | None) -> list[str]:
    """List the contexts of a kubeconfig, by default the user's; empty if it can't be read."""
    return list(_contexts(kubeconfig or _default_files())[0])


def _default_files() -> str:
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _kubeconfig_api(files: str, context: str | None) -> Api:
    import yaml  # noqa: PLC0415 (as the library below)
    from kubernetes import client, config  # noqa: PLC0415 (a replica in a pod doesn't need it)

    configuration: Any = client.Configuration()
    configuration.retries, configuration.socket_options = False, KEEP_ALIVE
    configuration.connection_pool_maxsize = POOL_SIZE
    urllib3.disable_warnings()  # with `insecure-skip-tls-verify`, of each request

    def authorization() -> str:
        try:  # may run a program that gets a new token
            return configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
        except config.ConfigException as error:
            raise ClusterError(0, f"no cluster credentials: kubeconfig {files}: {_without_content(error)}") from None

    try:
        config.load_kube_config(files, context, client_configuration=configuration)  # type: ignore[no-untyped-call]
        if configuration.proxy and (user := urllib3.util.parse_url(configuration.proxy).auth):
            configuration.proxy_headers = urllib3.make_headers(proxy_basic_auth=unquote(user))
        pool = _trusting_as_go(client.rest.RESTClientObject(configuration).pool_manager)
    except config.ConfigException as error:
        problem = _without_content(error)
    except ImportError:
        problem = "a SOCKS proxy requires the Python package PySocks"
    except (yaml.YAMLError, *_FILE_ERRORS) as error:
        problem = f"cannot read the file: {_file_problem(error)}"
    else:
        return Api(configuration.host, pool, authorization)
    raise ClusterError(0, f"no cluster credentials: kubeconfig {files}: {problem}")


def _file_problem(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "unreadable"
    mark = getattr(error, "problem_mark", None)
    return f"invalid YAML in line {mark.line + 1}" if mark else "not a kubeconfig"


def _without_content(error: Exception) -> str:
    # The library quotes an entry's content in braces; for a user, that may include the token.
    return str(error).removeprefix("Invalid kube-config file. ").partition("{")[0]


def pod_api(source: str, folder: Path = SERVICE_ACCOUNT) -> Api:
    """Return the API server with the pod's service account. Each request reads the token: the kubelet replaces it."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    try:
        ca = (folder / "ca.crt").read_text() if host and port else ""
    except OSError as error:
        raise ClusterError(0, f"no cluster credentials: {source}: {error}") from None
    if not ca:
        raise ClusterError(0, f"no cluster credentials: {source}, and not running in a pod")
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Api(url, _make_pool(ca_cert_data=ca), lambda: f"Bearer {(folder / 'token').read_text()}")
