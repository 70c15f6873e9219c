"""The arguments and configuration files of each program of the control plane.

The programs run in the plane's folder, so every path here is relative to it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.authority import issue_ca
from tests.support.client_certificates import issue_client, write_client
from tests.support.controlplane.api import LOOPBACK

CERTIFICATES = "certs"
# The API server has a client certificate for the Services of this namespace only. The file has its CA.
CLIENT_NAMESPACE, CLIENT_CA = "chart-clients", "client-ca.crt"
KUBECONFIG = "kubeconfig"
KEY = "service-accounts.key"
# The default limits of 20 to 50 requests per second protect large clusters. Here they would only slow the tests down.
QPS = 1000
# kwok does not change the status of a node with this annotation, so a test can set it, for example to NotReady.
DISREGARD_STATUS = "kwok.x-k8s.io/unplayed"


def write_files(folder: Path, token: str, socket: Path) -> None:
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (folder / KEY).write_bytes(key)
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(socket)}}}
    egress = {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }
    (folder / "egress.json").write_text(json.dumps(egress))
    write_client_certificate(folder)


def write_client_certificate(folder: Path) -> None:
    """Write the client certificate that the API server presents to webhooks, and the configuration that names it."""
    ca = issue_ca(datetime.now(UTC))
    certificate, key = write_client(folder, issue_client(ca))
    (folder / CLIENT_CA).write_bytes(ca.certificate)
    files = {"client-certificate": str(certificate), "client-key": str(key)}
    users = [{"name": f"*.{CLIENT_NAMESPACE}.svc", "user": files}]
    (folder / "webhook-clients").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "users": users}))
    webhooks = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(folder / "webhook-clients"),
    }
    admission = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "MutatingAdmissionWebhook", "configuration": webhooks}],
    }
    (folder / "admission.json").write_text(json.dumps(admission))


def etcd(url: str) -> list[str]:
    return [
        "--data-dir=etcd",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls=http://{LOOPBACK}:0",
        "--unsafe-no-fsync",
    ]


def apiserver(port: int, etcd_url: str) -> list[str]:
    return [
        f"--etcd-servers={etcd_url}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--cert-dir={CERTIFICATES}",
        "--token-auth-file=tokens.csv",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={KEY}",
        f"--service-account-signing-key-file={KEY}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--egress-selector-config-file=egress.json",
        "--admission-control-config-file=admission.json",
        # A loopback address is invalid in Endpoints, so the Service `kubernetes` has none. No test calls it.
        f"--advertise-address={LOOPBACK}",
        "--endpoint-reconciler-type=none",
        "--allow-privileged",  # share-manager pods are privileged
        # A single worker could not delete the thousands of pods of a stream within the timeout of a request.
        "--delete-collection-workers=8",
    ]


def controller_manager(port: int, ca: Path) -> list[str]:
    return [
        f"--kubeconfig={KUBECONFIG}",
        f"--service-account-private-key-file={KEY}",
        f"--root-ca-file={ca}",
        "--leader-elect=false",
        # kwok's stages renew a node's heartbeat every 600 s, but by default a node is NotReady after 50 s without one.
        # Node leases are no alternative: a restarted kwok would wait for the leases of its predecessor.
        "--node-monitor-grace-period=1h",
        # A claim and its PV may meet only at the next sync, by default after 15 s.
        "--pvclaimbinder-sync-period=1s",
        f"--kube-api-qps={QPS}",
        f"--kube-api-burst={QPS}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
    ]


def scheduler(folder: Path, port: int, name: str, leader_elect: bool, more: dict[str, Any]) -> list[str]:
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": KUBECONFIG, "qps": QPS, "burst": QPS},
        "leaderElection": {"leaderElect": leader_elect, "resourceName": name},
        "profiles": [{"schedulerName": name}],
        "podMaxBackoffSeconds": 2,  # by default 10, for which each test of a pod that had no node would wait
    } | more
    (folder / f"{name}.json").write_text(json.dumps(config))
    return [
        f"--config={name}.json",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        # Without the API server's token reviews, every client is anonymous.
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
    ]


def kwok(port: int, stages: Path) -> list[str]:
    return [
        f"--kubeconfig={KUBECONFIG}",
        f"--config={stages}",
        "--manage-all-nodes",
        f"--disregard-status-with-annotation-selector={DISREGARD_STATUS}",
        f"--server-address={LOOPBACK}:{port}",
    ]
