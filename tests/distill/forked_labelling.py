"""Runs `weft` again and again without loading it each time: reads a line of JSON (arguments, and a file for what is
printed), forks, prints the child's id, and after its end how it ended. The child is a process like any other, and can
be killed as one."""

import json
import os
import sys

import weft.cli.commands.distill  # what a child would load
import weft.distill  # noqa: F401
from weft.cli import main


def child(arguments: list[str], printed: str) -> None:
    file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["weft", *arguments]
    main()


for line in sys.stdin:
    given = json.loads(line)
    number = os.fork()
    if not number:
        sys.stdin.close()
        status = 1
        try:
            child(given["arguments"], given["printed"])
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(status)
    print(number, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
