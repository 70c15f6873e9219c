"""`report -o wide` prints one line per VM, which fits 200 columns."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from click.testing import Result

from tests.support.builders import Object, labeled_namespace, node, storage
from tests.support.command_line import run_cli, write_manifests
from tests.support.fleet import longhorn_volume, replica, vm, vm_pod, vmi
from tests.support.migrations import migratable


def wide(file: Path, *options: str) -> Result:
    by_namespace = {"COLUMNS": None, "CO_SCHEDULE_OPT_IN": "namespace"}
    result = run_cli("report", "--snapshot", file, "-o", "wide", *options, env=by_namespace)
    assert result.exit_code == 0, result.stderr
    return result


def five_hundred_vms() -> Iterator[Object]:
    """Yield VMs with names as in practice: half of them are apart, and each namespace opts in otherwise."""
    nodes = [f"worker-{number:02}.rack-{number % 6}.dc1.example.com" for number in range(40)]
    yield from (node(name, allocatable={"cpu": "64", "memory": "256Gi", "pods": "250"}) for name in nodes)
    yield from (labeled_namespace(name) for name in ("payments", "team-platform"))
    for number in range(500):
        namespace = ("billing", "payments", "search", "team-platform")[number % 4]
        name, served = f"{namespace[-8:]}-db-{number:03}", nodes[number * 7 % 40]
        disk, where = f"{name}-root", nodes[(number * 7 + 3) % 40] if number % 2 else served
        for each in (
            *storage("disk1", served),
            longhorn_volume("vol-disk1"),
            replica(nodes[number % 40]),
            vm(name, opt_in=not number % 4),
            vm_pod(name, where, decided="ShareManagerMoved", opt_in=None if number % 4 else "true"),
            migratable(name, where) if number % 3 else vmi(name),
        ):
            text = msgspec.json.encode(each).decode().replace("disk1", disk).replace('"default"', f'"{namespace}"')
            yield msgspec.json.decode(text)


def test_the_wide_table_of_500_vms_fits_200_columns_with_whole_names(tmp_path: Path) -> None:
    file = write_manifests(tmp_path, *five_hundred_vms())
    _settings, _empty, heads, *rows = wide(file).stdout.splitlines()
    assert max(map(len, (heads, *rows))) <= 200
    assert heads.index("WHAT TO DO") < heads.index("NODE")
    (row,) = (row for row in rows if "payments-db-001" in row)
    cells = "payments payments-db-001 Apart recolocate worker-10.rack-4 worker-07.rack-1".split()
    assert [cell for cell in row.split() if cell in cells] == cells
    assert "payments-db-001-root" in row
    assert sum("\u2026" in row for row in rows) > 100
    for_scripts = wide(file, "--no-headers").stdout
    assert len(for_scripts.splitlines()) == 500
    assert "\u2026" not in for_scripts
    assert "worker-10.rack-4.dc1.example.com" in for_scripts
