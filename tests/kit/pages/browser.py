"""A headless Chromium, driven by the DevTools protocol, for tests of pages."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0",
)  # fmt: skip
PATIENCE = 30  # seconds until a start or an answer is overdue


def find_chromium() -> str | None:
    """Return the program of Chromium; None where it is not installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab; `events` are the errors, the texts of its console and the requests that it made."""

    def __init__(self, runner: asyncio.Runner, socket: Any) -> None:
        self.runner, self.socket = runner, socket
        self.events: list[dict[str, Any]] = []
        self.count = 0
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; keep the events until then."""
        return self.runner.run(asyncio.wait_for(self._call(method, parameters), PATIENCE))

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        await self.socket.send_json({"id": self.count, "method": method, "params": parameters})
        while (message := await self.socket.receive_json()).get("id") != self.count:
            self.events.append(message)
        assert "error" not in message, message["error"]
        return message["result"]

    def open_page(self, path: Path) -> None:
        """Load a page and forget the events of the one before."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        end = time.monotonic() + PATIENCE
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < end, f"{path} does not load"
            self.evaluate("0")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression of JavaScript."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press_key(self, key: str) -> None:
        """Press and release a key, by its name, as a keyboard does."""
        code = {"Tab": 9, "Enter": 13, " ": 32}[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            options = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code, **options)  # fmt: skip

    def set_screen(self, width: int, height: int = 900, **media: str) -> None:
        """Set the width of the window in pixels, and features as `theme="dark"`."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip
        theme = {"name": "prefers-color-scheme", "value": media.get("theme", "light")}
        self.call("Emulation.setEmulatedMedia", media=media.get("media", ""), features=[theme])


@contextmanager
def start_browser(program: str, folder: Path) -> Iterator[Browser]:
    """Start Chromium with a profile in a folder, and end it and its profile."""
    import aiohttp

    command = [program, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _wait_for_port(folder / "DevToolsActivePort", process)
        with asyncio.Runner() as runner:

            async def connect() -> tuple[Any, Any]:
                session = aiohttp.ClientSession()
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
                address = tabs[0]["webSocketDebuggerUrl"]
                return session, await session.ws_connect(address, max_msg_size=2**28)

            session, socket = runner.run(connect())
            try:
                yield Browser(runner, socket)
            finally:
                runner.run(session.close())
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_port(path: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        if path.exists() and (lines := path.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.1)
    raise RuntimeError("Chromium did not start")
