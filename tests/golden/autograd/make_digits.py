"""The digits that scikit-learn ships, packed: digits.npz.

    python tests/golden/autograd/make_digits.py

Source: "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998,
its test set, under CC BY 4.0; scikit-learn (BSD-3-Clause) copies it as `sklearn.datasets.load_digits()`. 1,797 images
of 8 x 8 pixels, 0 to 16, and the digit of each.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from made_with import note_versions  # noqa: E402


def main():
    images, digits = load_digits(return_X_y=True)
    path = HERE / "digits.npz"
    np.savez_compressed(path, images=images.astype(np.uint8).reshape(-1, 8, 8), digits=digits.astype(np.uint8))
    note_versions(path, "scikit-learn", "numpy")
    print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
