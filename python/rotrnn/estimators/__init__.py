"""Estimators with scikit-learn's conventions: `SequenceClassifier`, `SequenceRegressor` and `Forecaster`.

They train as recipes do (`rotrnn.train`), and scikit-learn need not be installed. What is fitted ends in "_". `model_`
and `params_` take and give numbers as they were given to `fit`: the scales of training are part of the parameters. In
float32, as `params_` are, this costs digits where a mean is many deviations from zero; predictions are in float64.
``est.model_.save(path, est.params_)`` and `rotrnn.load` carry them elsewhere, and ``est.model_.stream(est.params_)``
reads a sequence step by step.

`rotrnn.SequenceClassifier` is another class: the model that such an estimator fits.
"""

from rotrnn.estimators.base import Estimator
from rotrnn.estimators.forecaster import Forecaster
from rotrnn.estimators.sequences import SequenceClassifier, SequenceRegressor

__all__ = ["Estimator", "Forecaster", "SequenceClassifier", "SequenceRegressor"]
