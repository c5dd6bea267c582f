"""A stand-in for llama-server that misbehaves as the FAKE_ variables say. Standard library only.

FAKE_LOAD=s: answers 503 for that long. FAKE_BIND=s: opens its socket only then. FAKE_DIE=text: prints it
and exits with status 1. FAKE_KILL=1: dies of SIGKILL. FAKE_SILENT=1: never opens a socket. FAKE_LOG=s: writes
a line every so many seconds. FAKE_STARTS=file: its pid is added there at every start.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

OPTIONS = (
    "--model --host --ctx-size --parallel --threads-http --no-kv-unified --ctx-checkpoints --cache-ram --jinja "
    "--flash-attn --threads --threads-batch --sleep-idle-seconds"
)


def main() -> None:
    if "--help" in sys.argv:
        print(OPTIONS)
        return
    began_s = time.monotonic()
    if "FAKE_STARTS" in os.environ:
        with Path(os.environ["FAKE_STARTS"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
    print("hello from the stand-in", flush=True)
    if "FAKE_LOG" in os.environ:
        threading.Thread(target=chatter, args=(float(os.environ["FAKE_LOG"]),), daemon=True).start()
    if "FAKE_DIE" in os.environ:
        print(os.environ["FAKE_DIE"], flush=True)
        sys.exit(1)
    if "FAKE_KILL" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    if "FAKE_SILENT" in os.environ:
        time.sleep(600)
    time.sleep(float(os.environ.get("FAKE_BIND", "0")))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[sys.argv.index("--host") + 1])
    listener.listen()
    while True:
        client, _ = listener.accept()
        is_loading = time.monotonic() - began_s < float(os.environ.get("FAKE_LOAD", "0"))
        threading.Thread(target=answer, args=(client, is_loading), daemon=True).start()


def chatter(interval_s: float) -> None:
    while True:
        print("still loading", flush=True)
        time.sleep(interval_s)


def answer(client: socket.socket, is_loading: bool) -> None:
    with client:
        if client.recv(65536):
            status = b"503 Service Unavailable" if is_loading else b"200 OK"
            client.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")


main()
