"""A command line goes in, an exit code comes out.

0 fine, 1 spec error or failed verify, 2 usage, 3 target not usable here, 70 internal error.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from io import TextIOWrapper
from pathlib import Path


def main() -> None:
    """The ``lacc`` command. What nobody expected becomes a report file, no traceback."""
    gc.set_threshold(100_000)  # loading makes many objects, and all of them stay
    # products of a chunk are small: threads that share one mostly wait for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from lacc import report
    from lacc.cli import app
    from lacc.cli.answer import run
    from lacc.diagnostics import LaccError, render
    from lacc.findings import exit_code

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # α as \u03b1 where the encoding lacks it
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            code = run(app, sys.argv[1:])
        finally:
            sys.stdout.flush()  # what is buffered fails here, not behind the last line of ours
    except LaccError as problem:
        report.complain(render(problem.diagnostics, report.colored(sys.stderr)))
        sys.exit(exit_code(problem))
    except BrokenPipeError:
        _leave_output()
        sys.exit(1)
    except Exception as fault:
        if isinstance(fault, OSError) and fault.errno == errno.ENOSPC:
            _leave_output()
            report.complain("error: no space is left where the output goes")
            sys.exit(2)
        if os.environ.get("LACC_DEBUG"):
            raise
        sys.exit(_internal_error())
    sys.exit(code)


def _leave_output() -> None:
    """Nothing more reaches what cannot be written to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _internal_error() -> int:
    import traceback

    from lacc import report
    from lacc.cli import app
    from lacc.cli.answer import asks_for_json
    from lacc.findings import document, of_fault

    arguments = sys.argv[1:]
    specs = [Path(a) for a in arguments if a.endswith((".la", ".py")) and Path(a).is_file()]
    path = report.fault(arguments, specs, traceback.format_exc())
    fault = sys.exc_info()[1]
    message = f"internal error: {type(fault).__name__}: {fault}"
    note = f"what is needed to see it again is in {path}"
    if asks_for_json(app, arguments):
        report.say(document(arguments[0], 70, [of_fault("internal", message, note)], {}))
    report.complain(f"error[LA0901]: {message}")
    report.complain(f"  = note: {note}")
    report.complain(
        "  = help: please send that file to the authors; LACC_DEBUG=1 shows the traceback"
    )
    return 70


if __name__ == "__main__":
    main()
