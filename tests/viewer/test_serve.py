#!/usr/bin/env python3
"""The dashboard in a browser (kvreplay view --serve), driven as its page does: pictures, keys, who drives, what is refused.

  KVREPLAY=build/release/bin/kvreplay python3 tests/viewer/test_serve.py

Needs NumPy, and a dashboard that was built with civetweb; without: nothing is tested, exit status 77.
"""
import base64
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PROGRAM = Path(os.environ.get("KVREPLAY", "kvreplay"))
DUMP = Path(__file__).resolve().parents[2] / "data" / "samples" / "pystdlib-lm"
WIDTH, HEIGHT = 900, 600
TEXT, BINARY, CLOSE = 1, 2, 8


def pixels_of(png):
    """[height, width, 3] of a PNG without filters, as the dashboard sends them."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n", png[:8]
    at, data, size = 8, b"", None
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        elif kind == b"IDAT":
            data += body
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(size[1], 1 + 3 * size[0])
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(size[1], size[0], 3)


class Page:
    """What page.html is to the server."""

    def __init__(self, place, token, origin=None, host=None, path=None):
        self.texts, self.said, self.picture = [], {}, None
        self.socket = socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2])), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path or f'/dashboard?key={token}'} HTTP/1.1\r\nHost: {host or place}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nOrigin: {origin or 'http://' + place}\r\n\r\n").encode())
        head = b""
        while b"\r\n\r\n" not in head:
            byte = self.socket.recv(1)
            if not byte:
                break
            head += byte
        self.status = int(head.split()[1]) if head else 0

    def tell(self, message, opcode=TEXT):
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        mask, n = os.urandom(4), len(data)
        size = bytes([0x80 | n]) if n < 126 else bytes([0x80 | 126]) + struct.pack(">H", n)
        self.socket.sendall(bytes([0x80 | opcode]) + size + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))

    def key(self, name, **held):
        for down in (True, False):
            self.tell({"t": "key", "k": name, "down": down, **held})

    def exactly(self, n):
        data = b""
        while len(data) < n:
            part = self.socket.recv(n - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def message(self):
        """(opcode, bytes)"""
        first, length = self.exactly(2)
        if length == 126:
            length = struct.unpack(">H", self.exactly(2))[0]
        elif length == 127:
            length = struct.unpack(">Q", self.exactly(8))[0]
        data, opcode = self.exactly(length), first & 15
        if opcode == CLOSE:
            raise EOFError
        return opcode, data

    def receive(self):
        """One message: text is taken up and answered as the page does."""
        opcode, data = self.message()
        if opcode == BINARY:
            x, y = struct.unpack("<HH", data[:4])
            part = pixels_of(data[4:])
            self.picture[y : y + part.shape[0], x : x + part.shape[1]] = part
            return {}
        text = json.loads(data)
        self.said.update(text)
        if "size" in text and (self.picture is None or self.picture.shape[:2] != tuple(text["size"][::-1])):
            self.picture = np.zeros((*text["size"][::-1], 3), np.uint8)
        if "picture" in text:
            self.tell({"t": "seen", "n": text["picture"]})
        return text

    def until(self, holds):
        while not holds():
            self.receive()

    def close(self):
        self.socket.close()


class Serve(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.server = subprocess.Popen([PROGRAM, "view", DUMP, "--serve", "0", "--backend", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True, cwd=self.folder.name)
        address = self.server.stdout.readline().strip()
        if not address:
            said = self.server.stderr.read()
            self.skipTest(said)
        self.assertRegex(address, r"^http://127\.0\.0\.1:\d+/\?key=[0-9a-f]{32}$")
        self.place, self.token = address[len("http://") :].split("/?key=")
        self.assertRegex(self.server.stdout.readline(), r"^from another machine: ssh -L (\d+):127\.0\.0\.1:\1 ")

    def tearDown(self):
        if self.server.poll() is None:
            self.server.send_signal(signal.SIGINT)
        self.assertEqual(self.server.wait(60), 0, self.server.stderr.read())
        self.server.stdout.close()
        self.server.stderr.close()
        self.folder.cleanup()

    def driver(self):
        page = Page(self.place, self.token)
        self.assertEqual(page.status, 101)
        page.tell({"t": "size", "w": WIDTH, "h": HEIGHT, "scale": 1})
        page.until(lambda: page.picture is not None and page.picture.shape == (HEIGHT, WIDTH, 3) and page.picture.any())
        self.assertTrue(page.said["drives"])
        return page

    def get(self, path, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", int(self.place.rpartition(":")[2]), timeout=60)
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body

    def test_a_page_drives_it(self):
        page = self.driver()
        page.until(lambda: page.picture.mean() > 20)  # something is drawn on the dark
        self.assertLess(page.picture.mean(), 100)
        page.key("t")
        page.until(lambda: page.picture.mean() > 150)  # light
        page.tell({"t": "size", "w": 640, "h": 480, "scale": 2})
        page.until(lambda: page.picture.shape == (480, 640, 3) and page.picture.mean() > 100)
        # The mouse over the menus: a hand, or a menu that opens, is a change.
        before = page.picture.copy()
        page.tell({"t": "button", "b": 0, "down": True, "x": 40, "y": 24})
        page.tell({"t": "button", "b": 0, "down": False, "x": 40, "y": 24})
        page.until(lambda: (page.picture != before).any())
        page.close()

    def test_the_first_drives_and_the_others_watch(self):
        first = self.driver()
        watcher = Page(self.place, self.token)
        watcher.until(lambda: watcher.picture is not None and watcher.picture.any() and "drives" in watcher.said)
        self.assertFalse(watcher.said["drives"])
        watcher.key("t")  # nobody asked it
        watcher.tell({"t": "size", "w": 400, "h": 300, "scale": 1})
        first.key("t")
        for page in (first, watcher):
            page.until(lambda page=page: page.picture.mean() > 150)
            self.assertEqual(page.picture.shape, (HEIGHT, WIDTH, 3))
        first.close()
        watcher.until(lambda: watcher.said["drives"])
        watcher.key("t")
        watcher.until(lambda: watcher.picture.mean() < 100)
        # Who comes back finds all as it was.
        again = Page(self.place, self.token)
        again.until(lambda: again.picture is not None and 0 < again.picture.mean() < 100)
        for page in (watcher, again):
            page.close()

    def test_what_is_saved_is_offered(self):
        page = self.driver()
        page.key("e", c=True)
        page.until(lambda: "file" in page.said)
        self.assertTrue(page.said["name"].endswith(".png"))
        status, body = self.get(f"/{page.said['file']}?key={self.token}")
        self.assertEqual((status, body[:8]), (200, b"\x89PNG\r\n\x1a\n"))
        self.assertEqual(body, (Path(self.folder.name) / page.said["name"]).read_bytes())
        self.assertEqual(self.get("/" + page.said["file"])[0], 403)
        page.close()

    def test_strangers_are_refused(self):
        right = f"/?key={self.token}"
        self.assertEqual(self.get(right)[0], 200)
        self.assertIn(b"<canvas", self.get(right)[1])
        port = self.place.rpartition(":")[2]
        for path, headers in (("/", {}), ("/?key=", {}), (f"/?key={self.token[:-1]}", {}), (f"/?key={self.token}0", {}),
                              (f"/?key={'0' * 32}", {}), (right, {"Origin": "http://evil.example"}), (right, {"Host": "evil.example"}),
                              (right, {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}),
                              (right, {"Origin": "null"})):
            self.assertEqual(self.get(path, **headers)[0], 403, (path, headers))
        self.assertEqual(self.get(right, Host=f"localhost:{port}", Origin=f"http://localhost:{port}")[0], 200)
        for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/etc/passwd", "/files/0", "/files/../main.cpp", "//", "/dashboard/.."):
            status, body = self.get(f"{path}?key={self.token}")
            self.assertNotIn(b"root:", body)
            self.assertIn(status, (200, 400, 403, 404), path)
            self.assertNotEqual((status, b"<canvas" in body), (200, False), path)
        for token, more in (("", {}), ("0" * 32, {}), (self.token, {"origin": "http://evil.example"}), (self.token, {"host": "evil.example"})):
            page = Page(self.place, token, **more)
            self.assertNotEqual(page.status, 101)
            page.close()
        # Of this machine alone.
        own = [address[4][0] for address in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET) if not address[4][0].startswith("127.")]
        for address in own:
            with self.assertRaises(OSError):
                socket.create_connection((address, int(port)), timeout=5).close()

    def test_what_no_page_says_ends_its_connection_and_nothing_else(self):
        bad = Page(self.place, self.token)
        random = np.random.default_rng(5)
        try:
            for n in range(10000):
                kind = n % 4
                bad.tell((b"{", b'{"t":"key","k":7}', random.bytes(1 + n % 100), b'{"t":"size","w":-1,"h":1e99,"scale":"x"}')[kind])
        except OSError:
            pass  # dropped, as it should be
        else:
            self.fail("10,000 of them were taken")
        half = Page(self.place, self.token)
        half.socket.sendall(b"\x81\xff" + b"\xff" * 8)  # a message of 2^64 bytes
        half.socket.close()
        binary = Page(self.place, self.token)
        binary.tell(b"\0" * 100, BINARY)
        page = self.driver_after(binary)
        for other in (bad, binary):
            other.close()
        page.key("t")
        page.until(lambda: page.picture.mean() > 150)
        page.close()

    def driver_after(self, other):
        """Once the other connection is gone."""
        with self.assertRaises((EOFError, OSError)):
            other.until(lambda: False)
        return self.driver()


if __name__ == "__main__":
    found = subprocess.run([PROGRAM, "view", "--serve", "0", "--help"], capture_output=True, text=True)
    if found.returncode != 0 or "--serve" not in found.stdout:
        print(f"skipped: {found.stderr.strip() or 'a dashboard without --serve'}")
        sys.exit(77)
    unittest.main()
