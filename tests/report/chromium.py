"""A headless Chromium, driven through the DevTools protocol over a pipe: nothing but the browser.

A test that requests one is skipped where there is none.
"""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from itertools import count

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
TIMEOUT_S = 60.0


def find_chromium():
    """Return the browser's path, or skip the test."""
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    pytest.skip("no Chromium here: install the package 'chromium' to run the browser tests")


class Chromium:
    """A browser with one page. Use as a context manager."""

    def __init__(self):
        path = find_chromium()
        self._folder = tempfile.mkdtemp(prefix="ggsched-chromium-")
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        # Out of the way of 3 and 4, which are the browser's ends.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_child, from_child)]
        os.close(to_child), os.close(from_child)
        quiet = os.open(os.devnull, os.O_WRONLY)
        # Nothing may be written over before it has been handed on: ``quiet`` may be 3 or 4.
        actions = [(os.POSIX_SPAWN_DUP2, quiet, fd) for fd in (1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4)]
        arguments = [path, *FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        self._pid = os.posix_spawn(path, arguments, os.environ, file_actions=actions, setsid=True)
        for fd in (*ends, quiet):
            os.close(fd)
        self._rest = b""
        self._numbers = count(1)
        self._session = None
        self.messages = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._read), os.close(self._write)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method, **params):
        """Call a method of the protocol; events that come meanwhile are kept in ``messages``."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data[: 1 << 16]) :]
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.messages.append(answer)
        raise TimeoutError(method)

    def _next(self):
        while b"\0" not in self._rest:
            more = os.read(self._read, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    # --- a page --------------------------------------------------------------------------------

    def open(self, url, width=1280, height=900, *, dark=False):
        """Show a page and wait until it is there."""
        self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width, height):
        """Set the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def ask(self, expression):
        """Return the value of an expression; promises are waited for."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    def until(self, expression):
        """Wait until an expression is true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.ask(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(expression)
            time.sleep(0.02)

    def mouse(self, kind, x, y, **more):
        """Send a mouse event, such as ``mouseMoved`` or ``mouseWheel``."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path):
        """Write a picture of the window."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def complaints(self):
        """Return errors of the page and what it asked of the network."""
        found = []
        for message in self.messages:
            method, params = message.get("method"), message.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:500])
            elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
                found.append(json.dumps(params["args"])[:500])
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "data:", "about:", "blob:")):
                    found.append(f"requested {url}")
        return found
