"""The server that `--connect` names: reading its address, and opening connections to it.

Whether a llama-server or a Jev endpoint answers there is asked once. Nothing is kept about either, since nothing
tells whether it is still the same one. Proxies of the environment do not count: what is asked goes where it was
told to go.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openjev_cli import errors
from openjev_cli.engine.client import Client, Connect

if TYPE_CHECKING:
    import ssl

CONNECT_S = 10.0


@dataclass(frozen=True)
class Endpoint:
    """An address that was read. host: for HTTP. base: what precedes the paths of the API, without a slash at its
    end. is_api: the address itself names /v1/systemone. notices: lines for stderr."""

    address: str
    connect: Connect
    host: str
    base: str = ""
    is_api: bool = False
    notices: tuple[str, ...] = ()

    def client(self, api_key: str | None) -> Client:
        """Return a client of it; nothing is connected yet."""
        return Client(
            self.connect,
            api_key=api_key,
            host=self.host,
            base=self.base,
            name=f"the server at {self.address}",
            advice=f"look at the log of {self.address}, or leave --connect out to use the managed server",
        )

    def api_path(self, api_key: str | None) -> tuple[str | None, bool]:
        """Return the path to ask a Jev endpoint or a native decision model at, None for any other model of a
        llama-server; and whether it is such a native model. Raises EngineError."""
        from openjev_cli.engine import systemone

        if self.is_api:
            return systemone.PATH, False
        with self.client(api_key) as client:
            if not systemone.is_llama_server(client):
                return systemone.PATH, False
            is_native = systemone.is_native(client)
        return (systemone.PATH if is_native else None), is_native


def parse(address: str, *, has_key: bool = False) -> Endpoint:
    """Return the endpoint of `http(s)://HOST[:PORT][/PATH]`, or of the path of a Unix socket. has_key: one will be
    sent along, which the notice says. Raises InputError for anything else."""
    if address.startswith(("http://", "https://")):
        return _parse_url(address, has_key=has_key)
    if "://" in address or not address:
        raise _no_address(address)

    def open_unix() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address)
        except OSError as exc:
            connection.close()
            raise _unreachable(address, exc) from exc
        return connection

    return Endpoint(address, open_unix, "localhost")


def _parse_url(address: str, *, has_key: bool) -> Endpoint:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as exc:
        raise _no_address(address) from exc
    host, is_tls = parts.hostname, parts.scheme == "https"
    if not host or parts.query or parts.fragment or port == 0:
        raise _no_address(address)
    if parts.username is not None or parts.password is not None:
        # It would stand in every message about the address.
        raise errors.InputError(
            "--connect: an address must not hold a name or password",
            next_step="Put the key into OPENJEV_API_KEY.",
        )
    path = parts.path.rstrip("/")
    is_api = path.endswith("/v1/systemone")
    base = path.removesuffix("/v1/systemone") if is_api else path.removesuffix("/v1")
    context: list[ssl.SSLContext] = []

    def open_tcp() -> socket.socket:
        try:
            connection = socket.create_connection((host, port or (443 if is_tls else 80)), timeout=CONNECT_S)
            if not is_tls:
                return connection
            import ssl

            if not context:
                context.append(ssl.create_default_context())
            return context[0].wrap_socket(connection, server_hostname=host)
        except OSError as exc:
            raise _unreachable(address, exc) from exc

    name = f"[{host}]" if ":" in host else host
    is_local = host in ("localhost", "::1") or host.startswith("127.")
    notices: tuple[str, ...] = ()
    if not is_local:
        what = "the state, the questions and the key" if has_key else "the state and the questions"
        notices = (f"{what} leave this machine for {host}" + ("" if is_tls else ", unencrypted"),)
    return Endpoint(address, open_tcp, f"{name}:{port}" if port else name, base, is_api, notices)


def _no_address(address: str) -> errors.InputError:
    return errors.InputError(
        f"--connect {address}: not an address of a server",
        next_step="write http://HOST:PORT or https://HOST, or the path of a Unix socket",
    )


def _unreachable(address: str, exc: OSError) -> errors.EngineError:
    reason = getattr(exc, "verify_message", None)
    said = f"its certificate is not trusted ({reason})" if reason else exc.strerror or str(exc) or "no answer"
    return errors.EngineError(
        f"nothing that can be asked answers at {address}: {said}",
        next_step="start a server there, or leave --connect out to use the managed one",
    )
