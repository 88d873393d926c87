"""A page in headless Chromium, by the DevTools protocol over pipes: JSON messages that end in a zero byte, on the
browser's file descriptors 3 (to it) and 4 (from it)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

READY = "document.body && document.body.dataset.ready"
"""What is true of the pages of examples/c once their programs run."""
PATIENCE = 120.0
"""Seconds until a browser that does not answer counts as broken; it starts in one or two when the machine is idle."""


def chromium() -> str | None:
    """The browser's program; CHROMIUM has its name where that is not Debian's."""
    return shutil.which(os.environ.get("CHROMIUM", "chromium"))


class Page:
    """A file in a browser's tab, from when `ready` is true in it. Use it as a context: the browser ends with it."""

    def __init__(self, path: Path, width: int = 1000, height: int = 700, ready: str = READY) -> None:
        program = chromium()
        assert program is not None
        self.count, self.buffer, self.errors = 0, b"", []
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs, self.write_to = os.pipe()
        self.read_from, their_answers = os.pipe()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += [f"--user-data-dir={self.folder.name}", "--remote-debugging-pipe", "about:blank"]
        # a shell gives the pipes the numbers that the browser expects; here they have others, so that none is lost
        low, high = (fcntl.fcntl(one, fcntl.F_DUPFD, 20) for one in (theirs, their_answers))
        shell = ["bash", "-c", f'exec "$@" 3<&{low} 4>&{high}', "bash"]
        self.process = subprocess.Popen([*shell, *command], pass_fds=(low, high), stderr=subprocess.DEVNULL)
        for one in (theirs, their_answers, low, high):
            os.close(one)
        self.session: dict[str, Any] = {}
        try:
            self._open(width, height)
            self.go(path, ready)
        except BaseException:
            self.close()
            raise

    def _open(self, width: int, height: int) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def go(self, path: Path, ready: str = READY) -> None:
        """Shows another file."""
        url = path.resolve().as_uri()
        self.call("Page.navigate", url=url)
        self.wait(f"location.href == {json.dumps(url)} && {ready}")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.write_to)
        os.close(self.read_from)
        self.folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result. Errors of the page meanwhile are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters, **self.session}
        os.write(self.write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(json.dumps(answer["params"]))
            if answer.get("id") == self.count:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_from], [], [], max(0.0, end - time.monotonic()))
            more = os.read(self.read_from, 2**16) if ready else b""
            assert more, "the browser ended" if ready else "the browser does not answer"
            self.buffer += more
        first, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def run(self, script: str) -> Any:
        """Returns the value of an expression in the page, as JSON has it."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Waits until an expression in the page is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def mouse(self, kind: str, x: float, y: float) -> None:
        """A mouse event: "mousePressed", "mouseMoved" or "mouseReleased" with the left button."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        """A touch event: "touchStart", "touchMove", or "touchEnd" without points."""
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y} for x, y in points])

    def picture(self, path: Path) -> None:
        """Writes what the tab shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
