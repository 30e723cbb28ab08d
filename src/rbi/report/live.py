"""`rbi report --live`: the page of runs that are still going on, served on this machine.

Two fixed routes, the page and its data; no path of a request ever becomes a path of a file. The server listens on
loopback unless another host is asked for, and answers only requests that name its own host, so that a page from
elsewhere cannot read it through a name that it points here (DNS rebinding).
"""

import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rbi import fileio
from rbi.report.collect import collect, expand
from rbi.report.html import render
from rbi.report.panels import Report

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WATCHED = ("config.json", "metrics.jsonl", "result.json")
DEFAULT_PORT = 8760


class LiveServer(ThreadingHTTPServer):
    """Serves `/` and `/data.json`; runs are read again only when one of their files has changed."""

    daemon_threads = True

    def __init__(
        self, paths: Sequence[Path], host: str = "127.0.0.1", port: int = DEFAULT_PORT, title: str = ""
    ) -> None:
        self.paths, self.title = [fileio.resolve(path) for path in paths], title
        self.any_host = host not in LOOPBACK
        self._lock = threading.Lock()
        self._seen: list[Any] = []
        self._report: Report | None = None
        self.report()  # what is not a run folder is refused before a port is opened
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ValueError(f"cannot listen on {host}:{port} ({reason}); choose another --host or --port") from None

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}/"

    def report(self) -> Report:
        """The report of the runs as they are now."""
        with self._lock:
            files = [path / name for path in expand(self.paths) for name in WATCHED]
            now = [(file, found.st_mtime_ns, found.st_size) for file in files if (found := stat(file)) is not None]
            if self._report is None or now != self._seen:
                self._report, self._seen = collect(self.paths, title=self.title, live=True), now
            return self._report


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the two routes."""

    server: LiveServer
    server_version, sys_version = "rbi", ""

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if not self.server.any_host and host.strip("[]") not in LOOPBACK:
            return self.send(HTTPStatus.FORBIDDEN, b"open this page by its own address\n", "text/plain", body=body)
        route = self.path.partition("?")[0]
        if route not in ("/", "/data.json"):
            return self.send(HTTPStatus.NOT_FOUND, b"there is / and /data.json\n", "text/plain", body=body)
        try:
            report = self.server.report()
        except (ValueError, OSError) as error:  # a run that was removed or replaced
            return self.send(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode(), "text/plain", body=body)
        if route == "/":
            return self.send(HTTPStatus.OK, render(report), "text/html; charset=utf-8", body=body)
        return self.send(HTTPStatus.OK, fileio.to_json(report.to_dict()).encode(), "application/json", body=body)

    def send(self, status: HTTPStatus, content: bytes, kind: str, *, body: bool) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in http.server
        """Requests are not logged: the page asks every two seconds."""


def stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None
