"""Boot one node, to see whether nodes can run here: `enter python -m tests.support.nodes.trial`.

User-mode Linux needs namespaces, a tap device, and seccomp or ptrace; the control plane's kube-proxy needs nftables.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.nodes.machine import Machine, prepare
from tests.support.nodes.system import SystemBuildError, system


def main() -> None:
    with TemporaryDirectory() as folder:
        prepare(system(), Path(folder))
        machine = Machine(1, {"ubd0": Path("/system/root.ext4")}, Path(folder))
        machine.start()
        try:
            machine.wait_until_booted()
            machine.run("test -d /sys/module/ip_vs && test -d /sys/module/nfs")
            subprocess.run(["nft", "add", "table", "ip", "trial"], check=True)
        finally:
            machine.cut_power()


if __name__ == "__main__":
    try:
        main()
    except (OSError, RuntimeError, SystemBuildError, subprocess.SubprocessError) as error:
        sys.exit(f"no nodes can run here: {error}")
