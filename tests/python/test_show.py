"""kvreplay.show(): the dashboard in a notebook's cell, directly and behind a proxy, and what is left of it without a kernel.

  PYTHONPATH=build/release/python python3 tests/python/test_show.py

Needs a dashboard that was built with civetweb, and for what a browser shows Chromium.
"""
import base64
import http.client
import os
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

sys.dont_write_bytecode = True
import kvreplay
from kvreplay import _dashboard

ROOT = Path(__file__).resolve().parents[2]
DUMP = ROOT / "data/samples/pystdlib-lm"
os.environ["KVREPLAY"] = kvreplay.program()
sys.path.insert(0, str(ROOT / "tests/viewer"))
from test_serve_browser import CHROMIUM, Tools  # noqa: E402

HUB = {"JUPYTERHUB_SERVICE_PREFIX": "/user/me/", "JUPYTERHUB_PUBLIC_URL": ""}


def status_of(view, path=None, **headers):
    """Of the dashboard's page, asked for as a proxy asks for it."""
    parts = urlsplit(view.url)
    connection = http.client.HTTPConnection("127.0.0.1", view._server.port, timeout=60)
    connection.putrequest("GET", path or f"/?{parts.query}", skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def gone(pid):
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


class Show(unittest.TestCase):
    def tearDown(self):
        _dashboard._close_all()

    def test_it_is_served_shared_and_ended(self):
        view = kvreplay.show(DUMP, picture=0)
        self.assertRegex(view.url, r"^http://127\.0\.0\.1:\d+/\?key=[0-9a-f]{32}$")
        self.assertEqual(status_of(view), 200)
        self.assertIn(view.url, repr(view))
        again = kvreplay.show(os.path.relpath(DUMP), picture=0)
        self.assertEqual((again.pid, again.url), (view.pid, view.url))
        opened = kvreplay.show(kvreplay.Dump(DUMP), picture=0)
        self.assertEqual(opened.pid, view.pid)
        other = kvreplay.show(DUMP, picture=0, layer=3, theme="light")
        self.assertNotEqual(other.pid, view.pid)
        again.close()
        self.assertTrue(gone(view.pid))
        self.assertIn("closed", repr(view))
        self.assertEqual(status_of(other), 200)
        anew = kvreplay.show(DUMP, picture=0)
        self.assertEqual(status_of(anew), 200)
        view.close()  # which is closed already, and not the new one's
        self.assertEqual(status_of(anew), 200)

    def test_a_picture_is_kept(self):
        view = kvreplay.show(DUMP, height=500, width="90%")
        png = view._repr_png_()
        self.assertEqual((png[:8], png[16:24]), (b"\x89PNG\r\n\x1a\n", (1280).to_bytes(4, "big") + (500).to_bytes(4, "big")))
        html = view._repr_html_()
        self.assertIn(base64.b64encode(png).decode(), html)
        self.assertIn('style="width:90%"', html)
        self.assertIn("height:500px", html)
        self.assertNotIn(str(ROOT), html)
        bare = kvreplay.show(DUMP, picture=0)
        self.assertEqual(bare.pid, view.pid)
        self.assertIsNone(bare._repr_png_())
        late = kvreplay.show(DUMP, picture=0.001)
        self.assertEqual(late.picture, b"")

    def test_what_cannot_be_shown_is_one_line(self):
        def refused(expected, *what, **options):
            with self.assertRaises(kvreplay.InputError) as caught:
                kvreplay.show(*what, picture=0, **options)
            self.assertIn(expected, str(caught.exception))
            self.assertEqual(len(str(caught.exception).splitlines()), 1)

        refused("found nothing at /nowhere", "/nowhere")
        refused("--theme", DUMP, theme="pink")
        refused("proxy='https://HOST', found 'hub'", DUMP, proxy="hub")
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, PATH="/nowhere"):
            alone = Path(folder) / "kvreplay"
            shutil.copy(Path(kvreplay.program()).resolve(), alone)
            with mock.patch.object(_dashboard, "program", lambda: str(alone)):
                refused("kvreplay-viewer is neither beside kvreplay nor on the PATH", DUMP)
        self.assertFalse(_dashboard._servers)

    def test_it_ends_with_the_kernel_however_that_ends(self):
        script = "import kvreplay, sys; view = kvreplay.show(sys.argv[1], picture=0); print(view.pid, flush=True); input()"
        for end in (lambda kernel: kernel.stdin.close(), lambda kernel: kernel.kill(), lambda kernel: kernel.send_signal(signal.SIGTERM)):
            kernel = subprocess.Popen([sys.executable, "-c", script, DUMP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            pid = int(kernel.stdout.readline())
            os.kill(pid, 0)
            end(kernel)
            kernel.wait(60)
            self.assertTrue(gone(pid))
            for stream in (kernel.stdin, kernel.stdout):
                stream.close()

    def test_behind_a_proxy(self):
        with mock.patch.dict(os.environ, HUB):
            view = kvreplay.show(DUMP, picture=0, proxy="https://Hub.example.org")
            self.assertRegex(view.url, r"^/user/me/proxy/\d+/\?key=[0-9a-f]{32}$")
            with self.assertRaisesRegex(kvreplay.InputError, "JUPYTERHUB_PUBLIC_URL does not say"):
                kvreplay.show(DUMP, picture=0)
            with mock.patch.dict(os.environ, JUPYTERHUB_PUBLIC_URL="https://hub.example.org/user/me/"):
                self.assertEqual(kvreplay.show(DUMP, picture=0).url, view.url)
            self.assertRegex(kvreplay.show(DUMP, picture=0, proxy=False).url, "^http://127")
        hub, port = "hub.example.org", view._server.port
        right = {"Host": hub, "Origin": f"https://{hub}"}
        self.assertEqual(status_of(view, **right), 200)
        self.assertEqual(status_of(view, Host=hub), 200)
        self.assertEqual(status_of(view, Host=f"localhost:{port}", Origin=f"https://{hub}"), 200)
        self.assertEqual(status_of(view, Host=f"localhost:{port}", Origin=f"http://localhost:{port}"), 200)
        self.assertEqual(status_of(view, "/?key=" + "0" * 32, **right), 403)
        for host, origin in ((hub, f"http://{hub}"), (hub, "https://evil.example"), ("evil.example", f"https://{hub}"), (f"{hub}.evil.example", f"https://{hub}"),
                             (hub, "null"), ("evil.example", "https://evil.example"), (f"localhost:{port}", "https://evil.example")):
            self.assertEqual(status_of(view, Host=host, Origin=origin), 403, (host, origin))
        # Without a hub: a server of Jupyter's own on this machine, or one that lies below a path.
        self.assertRegex(kvreplay.show(DUMP, picture=0, proxy=True).url, r"^/proxy/\d+/\?")
        self.assertRegex(kvreplay.show(DUMP, picture=0, proxy="http://gpu:8888/base").url, r"^/base/proxy/\d+/\?")
        plain = kvreplay.show(DUMP, picture=0, proxy=True)
        self.assertEqual(status_of(plain, **right), 403)


class PassingOn(socketserver.BaseRequestHandler):
    """As jupyter-server-proxy passes on: all headers as they came, without the path before proxy/PORT; a page of its own beside."""

    page = ""

    def handle(self):
        head = b""
        while b"\r\n\r\n" not in head:
            part = self.request.recv(4096)
            if not part:
                return
            head += part
        found = re.match(rb"GET /user/me/proxy/(\d+)(/\S*) HTTP/1.1\r\n", head)
        if not found:
            body = self.page.encode()
            return self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        try:
            to = socket.create_connection(("127.0.0.1", int(found[1])))
        except OSError:
            return self.request.sendall(b"HTTP/1.1 500 Gone\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        to.sendall(b"GET " + found[2] + b" HTTP/1.1\r\n" + head[found.end() :])
        back = threading.Thread(target=self.copy, args=(to, self.request), daemon=True)
        back.start()
        self.copy(self.request, to)
        back.join()
        to.close()

    @staticmethod
    def copy(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Notebook(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True
    block_on_close = False


@unittest.skipIf(CHROMIUM is None, "there is no Chromium")
class Cell(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.notebook = Notebook(("127.0.0.1", 0), PassingOn)
        threading.Thread(target=self.notebook.serve_forever, daemon=True).start()
        self.browser = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1000,700", "--remote-debugging-port=0", "--remote-allow-origins=*",
             "--host-resolver-rules=MAP hub.example 127.0.0.1", "--disable-site-isolation-trials", "--disable-web-security",
             f"--user-data-dir={self.folder.name}/profile", "about:blank"], stderr=subprocess.PIPE, text=True)
        port = next(int(line.rpartition(":")[2].partition("/")[0]) for line in self.browser.stderr if "DevTools listening on" in line)
        self.tools = Tools(port)

    def tearDown(self):
        self.tools.close()
        self.browser.terminate()
        self.browser.wait(60)
        self.browser.stderr.close()
        self.notebook.shutdown()
        self.notebook.server_close()
        self.folder.cleanup()
        _dashboard._close_all()

    def open(self, view, host):
        PassingOn.page = f"<!doctype html><body>{view._repr_html_()}</body>"
        self.tools.ask("Page.navigate", url=f"http://{host}:{self.notebook.server_address[1]}/")

    def until(self, expression):
        end = time.monotonic() + 60
        while not self.tools.value(expression):
            self.assertLess(time.monotonic(), end, f"{expression} does not come true")
            time.sleep(0.05)

    # A frame's own words, which this browser lets the page around it read.
    DRAWS = ("(() => { const f = document.querySelector('iframe')?.contentWindow; const c = f?.document?.getElementById('picture'); if (!c || c.width < 400) return false; "
             "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v, i) => i % 4 < 3 && v > 100); })()")

    def check(self, view, host):
        self.open(view, host)
        self.until(self.DRAWS)
        self.assertFalse(self.tools.value("!!document.querySelector('img')"))
        view.close()
        self.open(view, host)
        self.until("document.querySelector('img')?.naturalWidth === 1280")
        time.sleep(1)
        self.assertFalse(self.tools.value("!!document.querySelector('iframe')"))

    def test_a_cell_shows_it_and_without_a_kernel_a_picture(self):
        self.check(kvreplay.show(DUMP), "127.0.0.1")

    def test_through_a_proxy(self):
        with mock.patch.dict(os.environ, HUB):
            view = kvreplay.show(DUMP, proxy=f"http://hub.example:{self.notebook.server_address[1]}")
        self.check(view, "hub.example")


if __name__ == "__main__":
    try:
        kvreplay.show(DUMP, picture=0).close()
    except kvreplay.InputError as error:
        print(f"skipped: {error}", file=sys.stderr)
        sys.exit(77)
    unittest.main()
