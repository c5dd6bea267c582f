"""The command's entry, with the one catch: every way out ends in one of the exit codes of `errors.Exit`."""

from __future__ import annotations

import time

BEGAN_AT_S = time.perf_counter()

import gc  # noqa: E402 - the clock above starts first
import os  # noqa: E402
import sys  # noqa: E402

# Collecting while modules load frees nothing and costs a warm call a tenth of its start (benchmarks/start.json).
gc.set_threshold(100_000, 20, 20)

_REPORT_TO = "please report it with the lines above and the command that caused it"


def main() -> None:
    """Run the command line of this process and exit."""
    code = run(sys.argv[1:])
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None: it was closed before we began (`>&-`)
                stream.flush()
    except BrokenPipeError:
        code = _closed_pipe()
    except OSError as exc:
        code = max(code, 2)
        _last_words(f"error: cannot write to standard output: {exc.strerror}")
        _last_words("next: Send the output to a file or pipe that takes it, and repeat.")
    # Not sys.exit: closing the streams again at shutdown would turn a full disk into exit code 120.
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Return the exit code of the command line `arguments`. Prints errors, never raises."""
    try:
        from openjev_cli import cli

        if os.environ.get("_OPENJEV_COMPLETE"):
            from openjev_cli.cli import completion

            sys.stdout.write(completion.answer(os.environ))
            return 0
        return cli.run(arguments, began_at_s=BEGAN_AT_S)
    except BrokenPipeError:
        return _closed_pipe()
    except KeyboardInterrupt:
        return 130
    except BaseException:
        import traceback

        traceback.print_exc()
        _last_words("error: this is a bug in openjev")
        _last_words(f"next: {_REPORT_TO}")
        return 70


def _closed_pipe() -> int:
    """End as other Unix tools do when the reader has gone: quietly, by SIGPIPE."""
    import signal

    # The interpreter must not try to flush into the closed pipe again.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    return 141


def _last_words(line: str) -> None:
    from contextlib import suppress

    with suppress(OSError):  # stderr itself may be what is closed or full
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
