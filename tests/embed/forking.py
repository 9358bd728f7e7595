"""Children of a test's own process."""

import gc
import os
import signal
from collections.abc import Callable

LONGEST_S = 60


def forked(work: Callable[[], object]) -> int:
    """Do `work` in a child, whose number is given: it must never go on with the tests, nor wait for ever."""
    child = os.fork()
    if child == 0:
        # Of thousands of such children one crashed in a collection (2026-11-18), which also walks over objects of the
        # test runner's threads; 900 collections in children of a plain program found nothing.
        gc.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a handler of Python's would wait, too
        signal.alarm(LONGEST_S)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child
