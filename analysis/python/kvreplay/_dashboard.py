"""The dashboard in a notebook: a child process of this one shows it in a cell's output."""
from __future__ import annotations

import atexit
import base64
import json
import os
import re
import subprocess
import tempfile
import threading
from html import escape
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union
from urllib.parse import urlsplit

from ._core import InputError
from ._layer import Dump
from ._options import takes
from ._program import AnyPath, program, words_of
from .results import Results, ResultsOverDumps

What = Union[AnyPath, Dump, Results, ResultsOverDumps]

# The picture stands until the page has found out that the dashboard answers; without scripts, or a kernel, it stays.
HTML = """<div id="{id}" style="width:{width}">
<img src="data:image/png;base64,{picture}" alt="{title}" style="max-width:100%"></div>
<script>
fetch({url}, {{mode: "no-cors", cache: "no-store"}}).then((answer) => {{
  if (!answer.ok && answer.type !== "opaque") return;
  const frame = document.createElement("iframe");
  frame.src = {url};
  frame.allow = "clipboard-write; fullscreen";
  frame.style = "width:100%;height:{height}px;border:0";
  document.getElementById("{id}").replaceChildren(frame);
}}).catch(() => {{}});
</script>"""


class _Server:
    """`kvreplay view .. --serve`, which ends with this process, however that ends."""

    def __init__(self, words: Sequence[str], behind: str) -> None:
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            # A session of its own: what interrupts a cell does not end it.
            self.process = subprocess.Popen([program(), "view", *words, "--serve", "0", "--attached", *(["--behind", behind] if behind else [])],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True)
            address = self.process.stdout.readline().strip()
            if not address:
                self.close()
                said.seek(0)
                raise _refusal(said.read())
        parts = urlsplit(address)
        self.port, self.query = parts.port, parts.query

    def running(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.stdin.close()
        if self.running():
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()


_Key = Tuple[Tuple[str, ...], str]
_servers: Dict[_Key, _Server] = {}
_lock = threading.Lock()


@atexit.register
def _close_all() -> None:
    with _lock:
        for server in _servers.values():
            server.close()
        _servers.clear()


class Dashboard:
    """What show() shows: the last value of a cell, or .url in a browser of its own."""

    def __init__(self, key: _Key, server: _Server, prefix: Optional[str], height: int, width: str, picture: bytes, title: str) -> None:
        self._key, self._server, self._title = key, server, title
        self.height, self.width = height, width
        #: A PNG of the first screen; empty where it took too long.
        self.picture = picture
        local = f"http://127.0.0.1:{server.port}/"
        #: Its address, with the key that lets one in; below the notebook's own address where a proxy passes it on.
        self.url = (local if prefix is None else f"{prefix}proxy/{server.port}/") + f"?{server.query}"

    @property
    def pid(self) -> int:
        """Of the process that serves it."""
        return self._server.process.pid

    def close(self) -> None:
        """Ends the dashboard, in every cell that shows it."""
        with _lock:
            if _servers.get(self._key) is self._server:
                del _servers[self._key]
            self._server.close()

    def __repr__(self) -> str:
        return f"{self._title}: {self.url if self._server.running() else 'closed'}"

    def _repr_html_(self) -> str:
        url = json.dumps(self.url).replace("<", "\\u003c")
        return HTML.format(id=f"kvreplay-{os.urandom(8).hex()}", width=escape(self.width), height=self.height, url=url, title=escape(self._title),
                           picture=base64.b64encode(self.picture).decode())

    def _repr_png_(self) -> Optional[bytes]:
        return self.picture or None


@takes(program=True)
def show(what: Union[What, Sequence[What]], height: int = 800, width: str = "100%", *, proxy: Union[str, bool, None] = None,
         picture: float = 30, **options: Any) -> Dashboard:
    """The dashboard (`kvreplay view`) in a cell's output, of `height` pixels and `width`. It takes the mouse as in a window.

    what: a dump, a result folder, or several.

    options: of `kvreplay view`, '_' for '-': layer=3, head=1, theme="light". Calls with the same paths and options share one
    process, which .close() ends, or the kernel's end.

    proxy: how the browser comes to this machine. None: directly, or where JUPYTERHUB_SERVICE_PREFIX is set as with True. True:
    through jupyter-server-proxy, which must be installed beside Jupyter's server. A text: likewise, and the address of that
    server as the browser has it, "https://hub.example.org", which must be said unless it is localhost or JUPYTERHUB_PUBLIC_URL
    says it: pages of other addresses are refused.

    picture: seconds that a picture of the first screen may take. It is kept in the notebook, and shown where the dashboard
    does not answer: in a notebook that is opened again, exported, or read where scripts do not run. 0: none.
    """
    several = [what] if isinstance(what, (str, os.PathLike, Dump, Results, ResultsOverDumps)) else list(what)
    paths = [os.fspath(getattr(one, "folder", None) or getattr(one, "path", None) or one) for one in several]
    for path in paths:
        if not Path(path).exists():
            raise InputError(f"show: expected a dump or results, found nothing at {path}")
    words = [*map(os.path.abspath, paths), *words_of(options)]
    prefix, behind = _way(proxy)
    shot = _Shot(words, height) if picture > 0 else None
    key = (tuple(words), behind)
    try:
        with _lock:
            server = _servers.get(key)
            if server is None or not server.running():
                server = _servers[key] = _Server(words, behind)
        return Dashboard(key, server, prefix, height, width, shot.taken(picture) if shot else b"", f"kvreplay: {', '.join(Path(path).name for path in paths)}")
    finally:
        if shot:
            shot.end()


def _way(proxy: Union[str, bool, None]) -> Tuple[Optional[str], str]:
    """The path before "proxy/PORT/", None where there is no proxy; and the origin of pages."""
    hub = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
    if proxy is None:
        proxy = bool(hub)
    if proxy is False:
        return None, ""
    said = proxy if isinstance(proxy, str) else os.environ.get("JUPYTERHUB_PUBLIC_URL", "")
    parts = urlsplit(said)
    if said and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise InputError(f"show: expected proxy='https://HOST', found {said!r}")
    if hub and not said:
        raise InputError("show: expected proxy='https://HOST', the address of JupyterHub as your browser has it, which JUPYTERHUB_PUBLIC_URL does not say")
    prefix = hub or parts.path or "/"
    return prefix.rstrip("/") + "/", f"{parts.scheme}://{parts.netloc.lower()}" if said else ""


class _Shot:
    """A picture of the first screen, drawn by a process of its own meanwhile."""

    def __init__(self, words: Sequence[str], height: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="kvreplay-")
        self.path = Path(self.folder.name) / "picture.png"
        size = f"1280x{min(max(height, 240), 4000)}"
        self.process = subprocess.Popen([program(), "view", *words, "--screenshot", self.path, "--size", size], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def taken(self, seconds: float) -> bytes:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return b""
        return self.path.read_bytes() if self.process.returncode == 0 else b""

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()


def _refusal(said: str) -> Exception:
    line = said.strip().splitlines()[-1] if said.strip() else "kvreplay view ended without a word"
    return InputError(re.sub(r"^kvreplay(-viewer)?: ", "", line))


__all__ = ["Dashboard", "show"]
