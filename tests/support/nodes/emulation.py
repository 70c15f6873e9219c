"""A real guest: QEMU without KVM, and a kernel of Debian with one program, which uses its disk.

The guest writes a number to its disk, reads it back and reports both on its console. At its start, it reports the
number that the disk has.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable

from tests.support.controlplane.api import Object
from tests.support.nodes.guests import NodeScenario, disk_of
from tests.support.nodes.machine import STATE, show
from tests.support.nodes.system import qemu
from tests.support.scenario import HOSTNAME, POOL

FOLDER = "/share/qemu"
LIBRARIES = f"{FOLDER}/usr/lib/x86_64-linux-gnu"
# Process 1 of the guest.
INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b insmod /virtio_blk.ko
read_number() { $b dd if=/dev/vda bs=4096 count=1 iflag=direct 2>/dev/null | $b tr -cd 0-9; }
number=$(read_number)
echo "guest: found ${number:-0}"
while :; do
    number=$((number + 1))
    $b printf '%-4096s' "$number" | $b dd of=/dev/vda bs=4096 count=1 conv=fsync,notrunc 2>/dev/null
    echo "guest: wrote $number, read $(read_number)"
    $b sleep 1
done
"""
RUN = f"""
truncate --size 16M $DISK
exec {FOLDER}/usr/lib64/ld-linux-x86-64.so.2 --library-path {LIBRARIES} {FOLDER}/usr/bin/qemu-system-x86_64 \\
    -accel tcg -machine pc -m 128 -nodefaults -no-user-config -display none -nic none \\
    -L {FOLDER}/usr/share/qemu -L {FOLDER}/usr/share/seabios \\
    -chardev file,id=console,path=$CONSOLE -serial chardev:console \\
    -kernel {FOLDER}/boot/vmlinuz-* -initrd /share/work/initramfs \\
    -append "console=ttyS0 quiet no_timer_check panic=-1" \\
    -drive file=$DISK,format=raw,if=virtio,cache=none
"""


def prepare() -> None:
    """Put QEMU and the guest's program into the nodes' folder /share, if they aren't there."""
    folder = STATE / FOLDER.removeprefix("/")
    if folder.exists():
        return
    folder.mkdir()
    show(qemu(), folder)
    (module,) = folder.glob("usr/lib/modules/*/kernel/drivers/block/virtio_blk.ko.xz")
    files = {
        "bin/busybox": (0o755, (folder / "usr/bin/busybox").read_bytes()),
        "virtio_blk.ko": (0o644, lzma.decompress(module.read_bytes())),
        "init": (0o755, INIT.encode()),
    }
    (STATE / "share/work/initramfs").write_bytes(archive(("bin", "dev"), files))


def archive(folders: Iterable[str], files: dict[str, tuple[int, bytes]]) -> bytes:
    """Return an archive as the kernel unpacks it: cpio in the format `newc`."""
    members = [(name, 0o40755, b"") for name in folders]
    members += [(name, 0o100000 | mode, content) for name, (mode, content) in files.items()]
    found = bytearray()
    for number, (name, mode, content) in enumerate([*members, ("TRAILER!!!", 0, b"")], 1):
        path = name.encode() + b"\0"
        header = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0]
        for part in b"070701" + "".join(f"{field:08X}" for field in header).encode() + path, content:
            found += part + bytes(-len(part) % 4)
    return bytes(found)


def emulated(guests: NodeScenario, pod: Object, claim: str, node: str) -> Object:
    """Return a VM's pod for a node, in which QEMU runs a guest whose disk is on the claim."""
    (container,) = pod["spec"]["containers"]
    variables = {"DISK": disk_of(claim), "CONSOLE": f"/share/work/{_console(guests, node)}"}
    container["command"] = ["/bin/bash", "-c", RUN]
    container["env"] = [{"name": key, "value": value} for key, value in variables.items()]
    container["volumeMounts"].append({"name": "qemu", "mountPath": FOLDER, "readOnly": True})
    container["resources"]["requests"] |= {"memory": "300Mi"}
    pod["spec"]["volumes"].append({"name": "qemu", "hostPath": {"path": FOLDER}})
    pod["spec"]["nodeSelector"] = {POOL: guests.namespace, HOSTNAME: node}
    return pod


def numbers(guests: NodeScenario, node: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the numbers that a node's guest has found at its start, and those that it wrote and read back."""
    guests.cluster[node].run("sync")  # its kernel has what the console shows
    file = STATE / "share/work" / _console(guests, node)
    text = file.read_text(errors="replace") if file.exists() else ""
    written = [(int(one), int(other)) for one, other in re.findall(r"guest: wrote (\d+), read (\d+)\r?\n", text)]
    return [int(each) for each in re.findall(r"guest: found (\d+)\r?\n", text)], written


def _console(guests: NodeScenario, node: str) -> str:
    """Return the name of a guest's console in the folder that nodes and host share."""
    return f"{guests.namespace}-{node}-console"
