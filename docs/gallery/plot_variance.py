"""
To the exact minimum: SAGA and SVRG
===================================

At a constant rate, SGD stays at some distance from the minimum, because the gradient of a
single row is noisy. SAGA and SVRG correct each step by what they remember of the rows. On one
rank both go on to the minimum. On several ranks that average their models, SVRG does so too,
because its full gradient is that of all ranks; SAGA removes the noise of a rank's own rows,
and keeps the distance that comes from averaging.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from dsgd import SGDClassifier
from dsgd.datasets import make_like
from dsgd.local import SAGA, SVRG

ALPHA = 1e-2
rows = make_like("ijcnn1", n_rows=2_000, seed=0)
sign = np.where(rows.y == rows.y.max(), 1.0, -1.0)


def objective(model):
    """Return the mean loss plus the penalty."""
    margin = sign * (rows.X @ model.coef_.ravel() + model.intercept_[0])
    return np.mean(np.logaddexp(0.0, -margin)) + 0.5 * ALPHA * np.sum(model.coef_**2)


# %%
# The minimum, from another solver: scikit-learn's C is one over the penalty and the number of
# rows.

exact = LogisticRegression(C=1.0 / (ALPHA * len(sign)), tol=1e-10, max_iter=10_000).fit(
    rows.X, rows.y
)
least = objective(exact)

# %%
# The distance to it after 1, 2, 4, ... epochs at a constant rate. Each point is a fit of its
# own, and 1e-16 is the precision of the numbers.

ways = {"SGD": None, "SAGA": SAGA(), "SVRG": SVRG()}
epochs = [1, 2, 4, 8, 16, 32, 64]
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for n_ranks, style in ((1, "o-"), (2, "s--")):
    for color, (name, optimizer) in enumerate(ways.items()):
        shared = {
            "loss": "log_loss",
            "alpha": ALPHA,
            "learning_rate": "constant",
            "eta0": 0.05,
            "tol": None,
        }
        models = [
            SGDClassifier(
                **shared,
                max_iter=n,
                optimizer=optimizer,
                n_jobs=n_ranks,
                sync=64,
                random_state=0,
            ).fit(rows.X, rows.y)
            for n in epochs
        ]
        distance = [max(objective(model) - least, 1e-16) for model in models]
        axis.plot(
            epochs,
            distance,
            style,
            color=f"C{color}",
            label=f"{name}, {n_ranks} rank{'s' * (n_ranks > 1)}",
        )
axis.set(xscale="log", yscale="log", xlabel="epochs", ylabel="objective above the minimum")
axis.grid(alpha=0.3)
axis.legend(ncols=2, fontsize="small")
plt.show()
