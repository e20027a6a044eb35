"""With the well-known emulator key, a web page of another site cannot use the server: shown in a browser.

The page comes from an attacker's server, which also forwards every other request to our server. To the browser and to
our server this looks like DNS rebinding, where the name of the attacker's site resolves to our address."""

from __future__ import annotations

import json
import queue
import shutil
import socket
import socketserver
import subprocess
import threading
import urllib.parse
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.server_process import TIMEOUT_S, ServerProcess, run_server
from twinbus.model.signature import make_token
from twinbus.server.auth.keys import EMULATOR_SECRET, ROOT_KEY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = shutil.which("chromium")
PAGE = Path(__file__).with_name("attack.html").read_bytes()
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ATTACKER = "evil.example"
FAR_S = 4_000_000_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: tools/setup installs it as root")


class ForeignSite(socketserver.ThreadingTCPServer):
    """An attacker's server: it serves a page, receives the page's report, and forwards other requests to our server.

    Reports go to another port, because a browser may reuse a forwarded connection.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target_server = server
        self.reports: queue.Queue[dict[str, Any]] = queue.Queue()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(socketserver.BaseRequestHandler):
    server: ForeignSite

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head and (chunk := self.request.recv(65_536)):
            head += chunk
        if head.startswith(b"GET /attack "):
            answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            self.request.sendall(answer % len(PAGE) + PAGE)
        elif head.startswith(b"POST /report "):
            body = head.partition(b"\r\n\r\n")[2]
            while not body.endswith(b"}"):
                body += self.request.recv(65_536)
            self.server.reports.put(json.loads(body))
            self.request.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        elif head:
            self._forward(head)

    def _forward(self, head: bytes) -> None:
        target_server = self.server.target_server
        with socket.create_connection((target_server.host, target_server.http_port)) as other:
            other.sendall(head)
            back = threading.Thread(target=_pump, args=(other, self.request))
            back.start()
            _pump(self.request, other)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while chunk := source.recv(65_536):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one of the two sockets is closed, so close the other
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("pages"), "--emulator-key", "--allowed-host=friend.example") as server:
        yield server


@pytest.fixture(scope="module")
def foreign_sites(server: ServerProcess) -> Iterator[tuple[ForeignSite, ForeignSite]]:
    """Return a site that serves the page, and one that receives the reports."""
    with ForeignSite(server) as site, ForeignSite(server) as report_site:
        for each in (site, report_site):
            threading.Thread(target=each.serve_forever).start()
        yield site, report_site
        for each in (site, report_site):
            each.shutdown()


@contextmanager
def browsing(address: str, profile: Path) -> Iterator[None]:
    """Open a page in Chromium, with all names under .example on this machine."""
    assert CHROMIUM is not None
    rules = "--host-resolver-rules=MAP *.example 127.0.0.1"
    command = [CHROMIUM, *OPTIONS, rules, f"--user-data-dir={profile}", "--remote-debugging-port=0", address]
    quiet = subprocess.DEVNULL
    browser = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        browser.terminate()
        browser.wait(TIMEOUT_S)


def attack_results(
    server: ServerProcess, foreign_sites: tuple[ForeignSite, ForeignSite], name: str, profile: Path
) -> dict[str, Any]:
    """Return the results of the attacks by a page from the site with this name."""
    site, report_site = foreign_sites
    token = make_token(f"http://{server.host}/", ROOT_KEY_NAME, EMULATOR_SECRET, FAR_S)
    report = f"http://{name}:{report_site.port}/report"
    given = json.dumps({"server": f"{server.host}:{server.http_port}", "token": token, "report": report})
    with browsing(f"http://{name}:{site.port}/attack#{urllib.parse.quote(given)}", profile):
        return report_site.reports.get(timeout=TIMEOUT_S)


def test_a_page_of_another_site_cannot_use_the_server(
    server: ServerProcess, foreign_sites: tuple[ForeignSite, ForeignSite], tmp_path: Path
) -> None:
    assert attack_results(server, foreign_sites, ATTACKER, tmp_path) == {
        "socket": "refused",
        "request": "blocked",
        "reboundSocket": "refused",
        "reboundRequest": 403,
    }


def test_a_page_of_an_allowed_host_can_use_the_server(
    server: ServerProcess, foreign_sites: tuple[ForeignSite, ForeignSite], tmp_path: Path
) -> None:
    assert attack_results(server, foreign_sites, "friend.example", tmp_path) == {
        "socket": "answered",
        "request": "blocked",
        "reboundSocket": "answered",
        "reboundRequest": 200,
    }
