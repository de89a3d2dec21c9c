"""Evaluation of a fitted model: accuracy, the trivial classifier's accuracy, and the full objective.

Everything here is computed from the model that a fit returns, the average over the ranks, and on all rows: the
published study scored one rank's own model and took its objective from the last sample seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from sklearn.metrics import balanced_accuracy_score, f1_score

from dsgd.ledger import PHASES
from dsgd.types import AnyArray

# Bytes and messages of the algorithm, and of control.
_SENT: Final = ("bytes_sent", "messages", "control_bytes_sent", "control_messages")
_LOSSES: Final[dict[str, Callable[[AnyArray], AnyArray]]] = {
    "hinge": lambda margin: np.maximum(0.0, 1.0 - margin),
    "squared_hinge": lambda margin: np.maximum(0.0, 1.0 - margin) ** 2,
    "log_loss": lambda margin: np.logaddexp(0.0, -margin),
}
#: The losses whose full objective is evaluated here, independently of the training code.
LOSSES: Final = tuple(_LOSSES)


def score(model: Any, X: Any, y: AnyArray) -> dict[str, float | None]:
    """Return how well a fitted classifier predicts.

    - returned: ``accuracy``, ``balanced_accuracy`` (mean of the recalls) and ``f1`` (of the second class, for two
      classes), all between 0 and 1.
    """
    classes = model.classes_
    decision = np.asarray(model.decision_function(X))
    codes = (decision > 0).astype(np.intp) if decision.ndim == 1 else np.argmax(decision, axis=1)
    predicted = classes[codes]
    f1 = float(f1_score(y, predicted, pos_label=classes[1], zero_division=0.0)) if len(classes) == 2 else None
    return {
        "accuracy": float(np.mean(predicted == y)),
        "balanced_accuracy": float(balanced_accuracy_score(y, predicted)),
        "f1": f1,
    }


def majority_accuracy(y_train: AnyArray, y_test: AnyArray) -> float:
    """Return the accuracy on `y_test` of always predicting the commonest label of `y_train`."""
    labels, counts = np.unique(y_train, return_counts=True)
    return float(np.mean(y_test == labels[np.argmax(counts)]))


def objective(model: Any, X: Any, y: AnyArray, *, loss: str, alpha: float) -> float:
    """Return the full training objective, alpha/2 ||w||^2 + mean loss, summed over one-vs-rest outputs."""
    decision = np.asarray(model.decision_function(X), dtype=np.float64)
    classes = model.classes_
    outputs = [(decision, classes[1])] if decision.ndim == 1 else list(zip(decision.T, classes, strict=True))
    mean_loss = sum(
        float(np.mean(_LOSSES[loss](values * np.where(y == label, 1.0, -1.0)))) for values, label in outputs
    )
    return 0.5 * alpha * float(np.sum(np.square(model.coef_, dtype=np.float64))) + mean_loss


def point(model: Any, epochs: float) -> dict[str, Any]:
    """Return a point of a curve after so many epochs: seconds since the first row on rank 0, bytes and messages of all.

    Bytes and messages are the algorithm's; those of control have names of their own.
    """
    seconds, totals = model.fit_report_["epochs"][-1]["seconds"], model.ledger_.totals()
    return {"epoch": epochs, "seconds": seconds, **{name: int(totals[name]) for name in _SENT}}


def spent(model: Any, ranks: int = 1) -> dict[str, Any]:
    """Return seconds by phase, summed over ranks or averaged over `ranks` of them, and counts over all ranks.

    Bytes and messages are the algorithm's; those of control have names of their own.
    """
    totals = model.ledger_.totals()
    return {
        **{f"{phase}_s": totals[f"{phase}_s"] / ranks for phase in PHASES},
        **{name: int(totals[name]) for name in (*_SENT, "rounds")},
    }
