"""Children of a test's own process."""

import os
import signal
from collections.abc import Callable

LONGEST_S = 60


def forked(work: Callable[[], object]) -> int:
    """Do `work` in a child, whose number is given: it must never go on with the tests, nor wait for ever."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a handler of Python's would wait, too
        signal.alarm(LONGEST_S)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child
