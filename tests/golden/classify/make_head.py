"""Coefficients of scikit-learn's LogisticRegression on small sets: what weft's head must find too.

python tests/golden/classify/make_head.py       (scikit-learn)
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from made_with import note_versions  # noqa: E402

CASES = {"three": (60, 8, 3, 1.0), "two": (40, 6, 2, 1.0), "many": (200, 12, 9, 10.0), "few": (16, 20, 8, 0.1)}


def main() -> None:
    made = {}
    for number, (name, (rows, dims, count, c)) in enumerate(CASES.items()):
        rng = np.random.default_rng(number)
        centres = rng.normal(size=(count, dims))
        y = np.arange(rows) % count
        x = (centres[y] + 1.5 * rng.normal(size=(rows, dims))).astype(np.float32)
        found = LogisticRegression(C=c, tol=1e-12, max_iter=100_000).fit(x.astype(np.float64), y)
        made |= {f"{name}_x": x, f"{name}_y": y.astype(np.int16), f"{name}_c": np.float64(c)}
        made |= {f"{name}_log_p": found.predict_log_proba(x.astype(np.float64))}
        made |= {f"{name}_coef": found.coef_, f"{name}_intercept": found.intercept_}
    path = HERE / "head.npz"
    np.savez_compressed(path, **made)
    note_versions(path, "numpy", "scikit-learn")


if __name__ == "__main__":
    main()
