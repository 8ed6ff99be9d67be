"""A headless Chromium that opens a page as a reader does, and tells what it did. No package beyond the browser.

And what a page is without one: its elements, text and tables.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from select import select
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE_S = 60
_VOID = {"meta", "img", "br", "hr", "link", "input", "base", "col", "area", "wbr"}

# The protocol is spoken on the descriptors 3 and 4, whatever the numbers of ours.
_LAUNCH = """
import fcntl, os, sys
aside = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, descriptor in zip((3, 4), aside):
    os.dup2(descriptor, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclass
class Seen:
    """A page as it was shown.

    Attributes:
        screenshot: The whole of it, as PNG, if one was taken.
        overflow_px: How much wider than the window it is.
        requests: What it asked for, itself aside.
        complaints: Errors and warnings of the console, and uncaught exceptions.
        answers: What the scripts returned that the test had run in it.
    """

    screenshot: bytes = b""
    overflow_px: int = 0
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)


class Browser:
    """One browser, told what to do by the DevTools protocol over a pair of pipes."""

    def __init__(self, out: int, into: int) -> None:
        self._out, self._into = out, into
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []

    def open(
        self,
        page: Path,
        *,
        width: int,
        height: int = 900,
        scheme: Literal["light", "dark"] = "light",
        run: tuple[str, ...] = (),
        scripts: bool = True,
        pictured: bool = False,
    ) -> Seen:
        """Open a file in a tab of its own; a screenshot is taken where it is asked for."""
        self._session = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=media)
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._events.clear()
        address = page.resolve().as_uri()
        self._call("Page.navigate", url=address)
        while not any(e["method"] == "Page.loadEventFired" for e in self._events):
            self._events.append(self._message())
        seen = Seen()
        seen.overflow_px = self._evaluate("document.documentElement.scrollWidth - window.innerWidth")
        seen.answers = [self._evaluate(script) for script in run]
        if pictured:
            shot = self._call("Page.captureScreenshot", captureBeyondViewport=True)
            seen.screenshot = b64decode(shot["data"])
        for event in self._events:
            self._note(event, address, seen)
        self._call("Page.close")
        return seen

    def print_pdf(self, page: Path) -> bytes:
        """What printing a file gives, as PDF on A4."""
        self._session = None
        target = self._call("Target.createTarget", url=page.resolve().as_uri())["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        while not self._evaluate("document.readyState === 'complete' && location.protocol === 'file:'"):
            pass
        return b64decode(self._call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])

    def _note(self, event: dict[str, Any], address: str, seen: Seen) -> None:
        method, said = event["method"], event.get("params", {})
        if method == "Network.requestWillBeSent" and said["request"]["url"] != address:
            url = said["request"]["url"]
            if not url.startswith("data:"):
                seen.requests.append(url)
        elif method == "Runtime.exceptionThrown":
            seen.complaints.append(str(said["exceptionDetails"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            seen.complaints.append(said["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            seen.complaints.append(str(said["args"]))

    def _evaluate(self, expression: str) -> Any:
        done = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select([self._out], [], [], _PATIENCE_S)[0]:
                raise TimeoutError("the browser says nothing")
            part = os.read(self._out, 2**20)
            assert part, "the browser is gone"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, ended afterwards; skips the test where none is installed (Debian: ``apt-get install chromium``)."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with TemporaryDirectory(prefix="tracetool-browser-", ignore_cleanup_errors=True) as profile:
        options = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-extensions", "--hide-scrollbars",
            f"--user-data-dir={profile}", "--remote-debugging-pipe",
        ]  # fmt: skip
        command = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), program, *options]
        process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_in, ours_out)
        finally:
            os.close(ours_out)
            os.close(ours_in)
            process.terminate()
            process.wait(_PATIENCE_S)


class Parsed(HTMLParser):
    """Elements and text of a page; complains about what is not closed as it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())
