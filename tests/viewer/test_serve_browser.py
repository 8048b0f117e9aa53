#!/usr/bin/env python3
"""The dashboard's page in Chromium, typed and clicked through.

  KVREPLAY=build/release/bin/kvreplay python3 tests/viewer/test_serve_browser.py [PICTURE.png]

With a name it leaves a picture of what the browser shows. Needs NumPy, Chromium, and a dashboard that was built with civetweb;
without: nothing is tested, exit status 77.
"""
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

try:
    from test_serve import DUMP, PROGRAM, TEXT, Page
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTH, HEIGHT = 1100, 700


class Tools(Page):
    """Chromium's DevTools of one tab."""

    def __init__(self, port):
        tabs = json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30).read())
        path = next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"].partition(f":{port}")[2]
        self.number = 0
        super().__init__(f"127.0.0.1:{port}", "", path=path)

    def ask(self, method, **parameters):
        self.number += 1
        self.tell({"id": self.number, "method": method, "params": parameters}, TEXT)
        while True:
            answer = json.loads(self.message()[1])
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def value(self, expression):
        return self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)["result"].get("value")

    def mouse(self, kind, x, y, **more):
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y):
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="none" if kind == "mouseMoved" else "left", clickCount=1)

    def key(self, key, text="", control=False):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "", modifiers=2 if control else 0)

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > end:
                raise AssertionError(f"{expression} does not come true; {self.value('said.textContent')}")
            time.sleep(0.05)


BRIGHT = ("(() => { const d = context.getImageData(0, 0, canvas.width, canvas.height).data; let s = 0; "
          "for (let i = 0; i < d.length; i += 4004) s += d[i]; return s / (d.length / 4004); })()")
SUM = ("(() => { const d = context.getImageData(0, 0, canvas.width, canvas.height).data; let s = 0; "
       "for (let i = 0; i < d.length; i += 4) s = (s * 31 + d[i] + 7 * d[i + 1] + 3 * d[i + 2]) % 1000000007; return s; })()")


class Browser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = subprocess.Popen([PROGRAM, "view", DUMP, "--serve", "0", "--backend", "cpu"], stdout=subprocess.PIPE, text=True,
                                      cwd=cls.folder.name)
        address = cls.server.stdout.readline().strip()
        cls.browser = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={WIDTH},{HEIGHT}", "--remote-debugging-port=0",
             "--remote-allow-origins=*", f"--user-data-dir={cls.folder.name}/profile", "about:blank"], stderr=subprocess.PIPE, text=True)
        for line in cls.browser.stderr:
            if "DevTools listening on" in line:
                port = int(line.rpartition(":")[2].partition("/")[0])
                break
        cls.tools = Tools(port)
        cls.tools.ask("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        cls.tools.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=f"{cls.folder.name}/downloads")
        cls.tools.ask("Page.navigate", url=address)
        cls.tools.until(f"typeof drives !== 'undefined' && drives && canvas.width === {WIDTH} && {BRIGHT} > 20")

    @classmethod
    def tearDownClass(cls):
        if len(sys.argv) > 1 and sys.argv[1].endswith(".png"):
            Path(sys.argv[1]).write_bytes(base64.b64decode(cls.tools.ask("Page.captureScreenshot")["data"]))
        cls.tools.close()
        cls.browser.terminate()
        cls.browser.wait(60)
        cls.browser.stderr.close()
        cls.server.send_signal(signal.SIGINT)
        assert cls.server.wait(60) == 0
        cls.server.stdout.close()
        cls.folder.cleanup()

    def settle(self):
        """The picture's sum once it stays what it is."""
        last = None
        for _ in range(200):
            now = self.tools.value(SUM)
            if now == last:
                return now
            last = now
            time.sleep(0.3)
        raise AssertionError("the picture does not come to rest")

    def test_typed_and_clicked_through(self):
        tools, before = self.tools, self.settle()
        # A menu opens under the mouse, and closes.
        tools.click(20, 12)
        tools.until(f"{SUM} !== {before}")
        tools.key("Escape")
        self.settle()
        # Another head by the keyboard: the pictures of its numbers change.
        before = self.settle()
        tools.key("n", "n")
        tools.until(f"{SUM} !== {before}")
        # The wheel zooms, dragging pans.
        before = self.settle()
        tools.mouse("mouseWheel", 500, 250, deltaX=0, deltaY=300)
        tools.until(f"{SUM} !== {before}")
        # Light and dark.
        tools.key("t", "t")
        tools.until(f"{BRIGHT} > 150")
        # The palette, typed into.
        tools.key("k", control=True)
        before = self.settle()
        for letter in "light":
            tools.key(letter, letter)
        tools.until(f"{SUM} !== {before}")
        self.settle()
        tools.key("Enter", "\r")
        tools.until(f"{BRIGHT} < 100")

    def test_a_figure_is_saved_and_downloaded(self):
        self.settle()
        self.tools.key("e", control=True)
        downloads = Path(self.folder.name) / "downloads"
        for _ in range(600):
            found = [path for path in downloads.glob("*.png")] if downloads.exists() else []
            if found:
                break
            time.sleep(0.1)
        self.assertEqual([path.read_bytes()[:4] for path in found], [b"\x89PNG"])
        self.assertEqual(found[0].read_bytes(), (Path(self.folder.name) / found[0].name).read_bytes())

    def test_the_page_follows_its_window(self):
        self.tools.ask("Emulation.setDeviceMetricsOverride", width=800, height=600, deviceScaleFactor=2, mobile=False)
        self.tools.until("canvas.width === 1600 && canvas.height === 1200")
        self.tools.ask("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        self.tools.until(f"canvas.width === {WIDTH} && canvas.height === {HEIGHT}")

    def test_moves_come_back_as_pictures(self):
        """While the mouse moves over a map the browser draws as it goes: 20 pictures a second are the aim, 5 what a busy machine must do."""
        self.settle()
        self.tools.value("window.drawnPictures = 0; const seenBefore = take; take = (message) => { if (message.picture) ++window.drawnPictures; seenBefore(message); }; 0")
        begin, n = time.monotonic(), 0
        while time.monotonic() - begin < 3:
            n += 1
            self.tools.mouse("mouseMoved", 380 + 7 * n % 240, 220 + 3 * n % 150)
        pictures = self.tools.value("window.drawnPictures")
        print(f"{pictures / (time.monotonic() - begin):.0f} pictures a second", file=sys.stderr)
        self.assertGreater(pictures, 15)


if __name__ == "__main__":
    found = subprocess.run([PROGRAM, "view", "--serve", "0", "--help"], capture_output=True, text=True)
    if CHROMIUM is None or found.returncode != 0 or "--serve" not in found.stdout:
        print("skipped: " + ("there is no Chromium" if CHROMIUM is None else found.stderr.strip() or "a dashboard without --serve"))
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
