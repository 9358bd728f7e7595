"""Classifiers of texts: a linear head on an embedder's vectors, with calibrated probabilities."""

from weft.classify.classifier import Classifier, Label
from weft.classify.fewshot import FewShot
from weft.classify.training import Trained, train_classifier
from weft.tiny.calibration import fit_temperature
from weft.tiny.logistic import Head, fit_head

__all__ = ["Classifier", "FewShot", "Head", "Label", "Trained", "fit_head", "fit_temperature", "train_classifier"]
