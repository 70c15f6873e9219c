"""Runs a headless Chromium and drives its pages with the DevTools protocol, over a pipe instead of a port."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from tests.support import needs

TIMEOUT = 60.0  # seconds; a page of 500 VMs takes one
# Chromium's sandbox needs a user namespace or another user than root, and a container's /dev/shm is too small.
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"]
# The browser reads commands from descriptor 3 and writes responses to descriptor 4.
SHELL = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'


class BrowserError(RuntimeError):
    """The browser can't be started, or a command failed."""


class Page:
    """A page of a running browser. `errors` has the uncaught exceptions and the blocked content."""

    def __init__(self, commands: int, responses: int) -> None:
        self._commands, self._responses, self._buffer = commands, responses, b""
        self._session, self._last_id = "", 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result."""
        self._last_id += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._last_id, "method": method, "params": parameters, **session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = monotonic() + TIMEOUT
        while (response := self._receive(deadline)).get("id") != self._last_id:
            self._record(response)
        if "error" in response:
            raise BrowserError(f"{method}: {response['error']['message']}")
        return response["result"]

    def _receive(self, deadline: float) -> Any:
        while b"\0" not in self._buffer:
            if not select.select([self._responses], [], [], max(0, deadline - monotonic()))[0]:
                raise BrowserError(f"the browser did not respond within {TIMEOUT:.0f} s")
            received = os.read(self._responses, 1 << 20)
            if not received:
                raise BrowserError("the browser exited")
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _record(self, event: Any) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(parameters["exceptionDetails"]))
            case "Log.entryAdded":
                self.errors.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, after its promise resolved."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def open(self, url: str) -> None:
        """Open a file or a page in a window."""
        self.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url="about:blank")  # a link into the same page would not load it again
        self.errors.clear()
        self.requests.clear()
        self.evaluate("window.isLeaving = true")
        self.call("Page.navigate", url=url)
        deadline = monotonic() + TIMEOUT
        while not self._has_loaded():
            if monotonic() > deadline:
                raise BrowserError(f"{url} did not load within {TIMEOUT:.0f} s")

    def _has_loaded(self) -> bool:
        try:
            return bool(self.evaluate("!window.isLeaving && document.readyState === 'complete'"))
        except BrowserError:  # the old document has just gone
            return False

    def press(self, key: str) -> None:
        """Press a key on the focused element."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def write(self, text: str) -> None:
        """Type a text into the focused element."""
        self.call("Input.insertText", text=text)


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Start Chromium with its profile in `folder`, and stop it at the end."""
    program = needs.find("chromium")
    read_commands, commands = os.pipe()
    responses, write_responses = os.pipe()
    arguments = [program, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", SHELL, str(read_commands), str(write_responses), *arguments],
            pass_fds=[read_commands, write_responses],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    os.close(read_commands)
    os.close(write_responses)
    try:
        yield Page(commands, responses)
    finally:
        os.close(commands)  # the browser exits when its pipe closes
        os.close(responses)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
