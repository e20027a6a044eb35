"""A server with its own configuration file and certificate, which a test changes while it runs.

    with run_reloadable(ReloadableServer(folder)) as server:
        server.configure(log_level="debug")
        server.reload()

The command line sets nothing that can be reloaded, so the file decides.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import signal
import socket
import ssl
from typing import TYPE_CHECKING

from cryptography import x509

from tests.support.multi_process_server import MultiProcessServer
from tests.support.server_process import TIMEOUT_S, ServerProcess, wait_until
from twinbus.server.tls.development_certificates import ensure_development_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RELOADED_TEXT = " reloaded keys="
RELOAD_FAILED_TEXT = "reload failed, the server continues unchanged: "
FIRST_SECRET = "first-secret-of-the-configuration-file"


class ReloadableServer(ServerProcess):
    log_options = ()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, options=[f"--config={folder / 'twinbus.toml'}"])
        self.prepare(folder)

    def prepare(self, folder: Path) -> None:
        """Create three certificates, a secret and a configuration file."""
        self.folder = folder
        self.data = folder / "data"
        for name in ("one", "two", "three"):
            ensure_development_certificate(folder / name, self.host, dt.datetime.now(dt.UTC))
        self.install_certificate("one")
        self.secret_file = folder / "secret"
        self.secret_file.write_text(FIRST_SECRET)
        self.configure()

    def configure(self, log_level: str = "info", more: str = "", queues: str = "orders") -> None:
        """Rewrite the configuration file."""
        tables = "".join(f'[[queues]]\nname = "{name}"\n' for name in queues.split())
        (self.folder / "twinbus.toml").write_text(
            f'log_level = "{log_level}"\ntls_cert = "server.pem"\ntls_key = "server.key"\n{more}\n'
            f'[[keys]]\nname = "app"\nrights = ["Send"]\nsecret_file = "secret"\n{tables}'
        )

    def install_certificate(self, name: str) -> None:
        """Replace the current certificate."""
        for part in ("server.pem", "server.key"):
            shutil.copy(self.folder / name / part, self.folder / part)

    def trusting(self, name: str) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.folder / name / "ca.pem")

    def served_certificate(self, port: int) -> str:
        """The name of the certificate that a new connection gets."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection((self.host, port), timeout=TIMEOUT_S) as plain,
            context.wrap_socket(plain) as secure,
        ):
            serial = x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"").serial_number
        names = {self._serial(name): name for name in ("one", "two", "three")}
        return names[serial]

    def _serial(self, name: str) -> int:
        return x509.load_pem_x509_certificate((self.folder / name / "server.pem").read_bytes()).serial_number

    def reload(self) -> None:
        """Send SIGHUP and check that the reload succeeds."""
        assert self._send_sighup() == (1, 0), self.log

    def reload_expecting_failure(self) -> str:
        """Send SIGHUP, check that the reload fails, and return the logged reason."""
        assert self._send_sighup() == (0, 1), self.log
        return self.log.rpartition(RELOAD_FAILED_TEXT)[2].splitlines()[0]

    def _send_sighup(self) -> tuple[int, int]:
        """Send SIGHUP, and return the number of reloads that succeeded and failed: (1, 0) or (0, 1)."""
        before = self._reloads()
        os.kill(self.pid, signal.SIGHUP)
        wait_until(lambda: self._reloads() != before)
        done, failed = self._reloads()
        return done - before[0], failed - before[1]

    def _reloads(self) -> tuple[int, int]:
        log = self.log
        return log.count(RELOADED_TEXT), log.count(RELOAD_FAILED_TEXT)


class ReloadableMultiProcessServer(ReloadableServer, MultiProcessServer):
    """A reloadable server of several processes."""

    def __init__(self, folder: Path) -> None:
        MultiProcessServer.__init__(self, folder, f"--config={folder / 'twinbus.toml'}", "--workers=2")
        self.prepare(folder)


@contextlib.contextmanager
def run_reloadable(server: ReloadableServer) -> Iterator[ReloadableServer]:
    """Start a server, and stop it cleanly at the end."""
    try:
        server.start()
        yield server
        server.stop()
        server.check_log()
        assert not (server.data / "keys.sock").exists()
    finally:
        server.kill()
