"""A real browser for tests: chromium without a window, driven through its debugging pipe, which needs no package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: What the browser may be called.
NAMES = ("chromium", "chromium-browser", "google-chrome")

#: The file descriptors on which a browser reads commands and writes answers.
_READS, _WRITES = 3, 4


def found_browser() -> str | None:
    """Return the path of a browser that can be driven, None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. What the page says on its console, and asks from a network, is kept."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers = commands, answers
        self._rest = b""
        self._ids = itertools.count(1)
        self._is_loaded = False
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        command = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        content = json.dumps(command).encode() + b"\0"
        while content:
            content = content[os.write(self._commands, content) :]
        while True:
            answer = self._message()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event["method"] == "Page.loadEventFired":
            self._is_loaded = True
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event["method"] == "Log.entryAdded":
            self.console.append(parameters["entry"]["text"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.console.append(json.dumps(parameters["exceptionDetails"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol to the tab, and return its result."""
        return self._send(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or what its promise holds."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, path: Path, width: int = 1200, height: int = 900) -> None:
        """Show a page, and wait until its timelines are drawn."""
        self.console.clear()
        self.requests.clear()
        self.resize(width, height)
        self._is_loaded = False
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not self._is_loaded:
            self._note(self._message())
        ready = """new Promise((done) => { const look = () => {
            const { ready, failed } = document.documentElement.dataset;
            ready || failed ? requestAnimationFrame(() => requestAnimationFrame(() => done(ready || failed)))
                            : setTimeout(look, 20);
        }; look(); })"""
        self.evaluate(ready)

    def resize(self, width: int, height: int) -> None:
        """Give the page so much room."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, kind: str = "", scheme: str = "light") -> None:
        """Show the page light or dark, and on a screen, or as on paper (print)."""
        self.send(
            "Emulation.setEmulatedMedia", media=kind, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def press(self, key: str) -> None:
        """Press a key and let it go; the next drawing is done when this returns."""
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.drawn()

    def point(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        """Move the pointer, or do something with it."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.drawn()

    def drawn(self) -> None:
        """Wait until what is to be drawn is."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as a PNG."""
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(picture))

    def print_to(self, path: Path) -> None:
        """Write the page as a PDF, as printing does."""
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"]))


@contextmanager
def started(directory: Path) -> Iterator[Browser]:
    """Start a browser whose files lie in a directory, and end it."""
    program = found_browser()
    assert program is not None
    their_commands, commands = os.pipe()
    answers, their_answers = os.pipe()

    def place() -> None:
        # Both may be where the other is to go.
        kept = os.dup(their_commands), os.dup(their_answers)
        os.dup2(kept[0], _READS)
        os.dup2(kept[1], _WRITES)

    process = subprocess.Popen(
        [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
            "--disable-extensions", "--disable-background-networking", f"--user-data-dir={directory}",
        ],
        preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory), "XDG_CACHE_HOME": str(directory)},
    )  # fmt: skip
    os.close(their_commands)
    os.close(their_answers)
    try:
        browser = Browser(commands, answers)
        yield browser
        browser._send("Browser.close")
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)
