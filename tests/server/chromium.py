"""Headless Chromium for tests of the page, driven over its DevTools protocol with the standard library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--remote-allow-origins=*"),
    "--disable-dev-shm-usage",
)


def find_chromium() -> str | None:
    """Return the browser's path, None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page in one browser. problems: what the page's console and the browser complained about"""

    def __init__(self, executable: str, profile: Path, size: tuple[int, int] = (1280, 860)) -> None:
        flags = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        self._process = subprocess.Popen(
            [executable, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.problems: list[str] = []
        self._number = 0
        port = self._port(profile)
        self._socket = _WebSocket(self._page_url(port))
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go to a URL and wait until its scripts have run."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && document.title !== ''")

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str, timeout_s: float = 30) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + timeout_s
        while not self.evaluate(script):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.05)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """Press a key; modifiers: 2 is Ctrl, 8 Shift."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def emulate(self, theme: str) -> None:
        """Prefer dark or light."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.receive())
            self._note(message)
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(10)

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(str(parameters["entry"]))

    def _port(self, profile: Path) -> int:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            path = profile / "DevToolsActivePort"
            if path.exists() and path.read_text().strip():
                return int(path.read_text().split()[0])
            time.sleep(0.05)
        raise AssertionError("the browser did not start")

    def _page_url(self, port: int) -> str:
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
            pages = json.load(answer)
        return next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")


class _WebSocket:
    """As much of RFC 6455 as a text conversation needs."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self._socket.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self._data = b""
        while b"\r\n\r\n" not in self._data:
            self._data += self._socket.recv(4096)
        self._data = self._data.partition(b"\r\n\r\n")[2]

    def send(self, text: str) -> None:
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
        if size >= 1 << 16:
            length = b"\xff" + struct.pack(">Q", size)
        self._socket.sendall(b"\x81" + length + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))

    def receive(self) -> str:
        pieces = []
        while True:
            first, second = self._read(2)
            size = second & 0x7F
            if size >= 126:
                size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
            pieces.append(self._read(size))
            if first & 0x80:
                return b"".join(pieces).decode()

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        while len(self._data) < size:
            self._data += self._socket.recv(1 << 16)
        data, self._data = self._data[:size], self._data[size:]
        return data
