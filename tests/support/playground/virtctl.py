"""The playground's stand-in for virtctl: `virtctl start|stop|restart|migrate VM [-n NAMESPACE]`.

It asks virt-controller for what the real one asks for, and refuses what the real one refuses:
https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-api/rest/lifecycle.go
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

Object = dict[str, Any]
ACTIONS = {"start": "starting", "stop": "stopping", "restart": "restarting", "migrate": "migrating"}
FINAL = ("Succeeded", "Failed")  # phases of a VMI
START: Object = {"action": "Start"}
NOT_RUNNING = "VM is not running"
Answer = Object | str  # what is merged into the VM, or why KubeVirt refuses it


def start(strategy: str, vmi: Object) -> Answer:
    phase = _phase(vmi)
    if phase and phase not in FINAL:
        return "VM is already running"
    match strategy:
        case "Halted":
            return _strategy("Always")
        case "RerunOnFailure" if phase == "Failed":
            return f"{strategy} does not support starting VM from failed state"
        case "RerunOnFailure" | "Manual":
            return _requests(*([_stop(vmi)] if phase else []), START)
    return f"{strategy} does not support manual start requests"


def stop(strategy: str, vmi: Object) -> Answer:
    if strategy in ("Always", "Once"):
        return _strategy("Halted")
    if not vmi or _phase(vmi) in FINAL:
        return NOT_RUNNING
    if strategy == "Halted":
        return f"{strategy} only supports manual stop requests with a shorter graceperiod"
    return _requests(_stop(vmi))


def restart(strategy: str, vmi: Object) -> Answer:
    if strategy in ("Halted", "Once"):
        return f"RunStategy {strategy} does not support manual restart requests"
    return _requests(_stop(vmi), START) if vmi else f"{NOT_RUNNING}: Halted"


def answer(action: str, vm: Object, vmi: Object) -> Answer:
    """Return what virt-api merges into a VM, or why it refuses that."""
    kinds = {"start": start, "stop": stop, "restart": restart}
    merged = kinds[action](vm["spec"].get("runStrategy", "Halted"), vmi)
    under_way = vm.get("status", {}).get("stateChangeRequests")
    if under_way and "status" in merged and action != "stop":
        return "unable to complete request: stop/start already underway"
    return merged


def _phase(vmi: Object) -> str:
    return str(vmi.get("status", {}).get("phase", ""))


def _stop(vmi: Object) -> Object:
    return {"action": "Stop", "uid": vmi["metadata"]["uid"]}


def _strategy(strategy: str) -> Object:
    return {"spec": {"runStrategy": strategy}}


def _requests(*requests: Object) -> Object:
    return {"status": {"stateChangeRequests": requests}}


def kubectl(*arguments: str, stdin: str = "") -> str:
    run = subprocess.run(["kubectl", *arguments], input=stdin, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.returncode)
    return run.stdout


def run(action: str, name: str, options: list[str]) -> str:
    """Do what is asked for, or return why KubeVirt refuses it."""
    shown = kubectl("get", f"vm/{name}", f"vmi/{name}", *options, "--ignore-not-found", "-o", "json")
    items = {item["kind"]: item for item in json.loads(shown or '{"items": []}')["items"]}
    vm = items.get("VirtualMachine")
    vmi = items.get("VirtualMachineInstance", {})
    if vm is None:
        return "not found"
    if action == "migrate":
        if _phase(vmi) != "Running":
            return NOT_RUNNING
        kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration"}
        body = kind | {"metadata": {"generateName": "kubevirt-migrate-vm-"}, "spec": {"vmiName": name}}
        kubectl("create", *options, "-f", "-", stdin=json.dumps(body))
        return ""
    merged = answer(action, vm, vmi)
    if isinstance(merged, str):
        return merged
    subresource = ["--subresource", "status"] if "status" in merged else []
    kubectl("patch", "vm", name, *options, *subresource, "--type", "merge", "-p", json.dumps(merged))
    return ""


def main() -> None:
    action, name, *options = sys.argv[1:]
    if action not in ACTIONS:
        raise SystemExit(f"only {', '.join(ACTIONS)} exist here, not {action}")
    if problem := run(action, name, options):
        raise SystemExit(f'Error {ACTIONS[action]} VirtualMachine: virtualmachine.kubevirt.io "{name}": {problem}')
    print(f"VM {name} was scheduled to {action}")


if __name__ == "__main__":
    main()
