"""Run scikit-learn's own checks of estimators on `weft.tiny.TinyClassifier`, and say which fail.

PYTHONPATH=. PYTHON_WITH_SCIKIT_LEARN tests/golden/tiny_estimator_checks.py
"""

import sys
import time

import sklearn
from sklearn.utils.estimator_checks import check_estimator

from weft.tiny import TinyClassifier


def main() -> None:
    began = time.perf_counter()
    found = check_estimator(TinyClassifier(epochs=40, rate=0.01), on_fail=None, on_skip=None)
    failed = [one for one in found if one["status"] == "failed"]
    for one in failed:
        print(f"{one['check_name']}: {type(one['exception']).__name__}: {str(one['exception'])[:300]}")
    passed, skipped = (sum(one["status"] == status for one in found) for status in ("passed", "skipped"))
    print(f"scikit-learn {sklearn.__version__}: {passed} checks passed, {skipped} skipped, {len(failed)} failed, "
          f"{time.perf_counter() - began:.0f} s")  # fmt: skip
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
