"""The command `rbi`, also as `python -m rbi`. Ctrl-C is clean from here on, also during the imports (0.2 s)."""

import sys

INTERRUPTED = 130  # rbi.cli.INTERRUPTED, which may not be imported yet


def main() -> int:
    """Import the command line and run it. Returns the exit status."""
    try:
        from rbi import cli

        return cli.main()
    except BaseException as error:
        if not is_interrupt(error):
            raise
        sys.stderr.write("rbi: interrupted\n")
        return INTERRUPTED
    finally:
        import signal  # not before `try`: it takes 14 ms unless something else has imported it

        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while the interpreter exits
        exec("")  # else python -m dies by the signal, with another status, if it came in an exec, as of dataclasses


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is a KeyboardInterrupt or was raised from one, as in class bodies of Python 3.11."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


if __name__ == "__main__":
    sys.exit(main())
