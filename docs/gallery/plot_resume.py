"""
A fit that is interrupted and goes on
=====================================

Batch systems end jobs that run too long, and machines fail. With ``checkpoint`` a fit keeps
its state in a folder, and with ``resume_from="auto"`` the same script begins the first time
and goes on every time after. The model is the one of a fit that was never interrupted.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from dsgd import Gang, SGDClassifier
from dsgd.datasets import make_like
from dsgd.runtime import Checkpoint

rows = make_like("ijcnn1", n_rows=20_000, seed=0)


def job(max_iter, **more):
    """Return the estimator of the job; parameters and seed are the same in every run."""
    return SGDClassifier(
        loss="log_loss",
        alpha=1e-4,
        average=True,
        max_iter=max_iter,
        tol=None,
        n_jobs=2,
        sync=256,
        random_state=0,
        **more,
    )


# %%
# The job of 24 epochs runs three times, and ends early twice: its limits of 8 and 16 epochs
# stand for those of a batch system. Nothing but the folder is kept between the runs.

parts = []
with tempfile.TemporaryDirectory() as folder:
    place = Checkpoint(Path(folder) / "job-17", every_s=30, keep=2)
    for stop in (8, 16, 24):
        model = job(stop, client=Gang(checkpoint=place, resume_from="auto")).fit(rows.X, rows.y)
        parts.append(model)
        newest = max(path.name for path in Path(place.path).glob("checkpoint-*"))
        print(f"ran to epoch {model.n_iter_:>2}; the newest file is {newest}")

# %%
# Beside it, a fit without interruption. Averages, step sizes and the order of rows are part of
# the state, so the weights are equal to the last bit.

whole = job(24).fit(rows.X, rows.y)
print("equal, bit for bit:", np.array_equal(whole.coef_, parts[-1].coef_))

# %%
# The curve of the last run holds the epochs of the runs before it.

figure, axis = plt.subplots(figsize=(7, 3.8), layout="constrained")
epochs = np.arange(1, 25)
axis.plot(epochs, whole.loss_curve_, color="0.7", linewidth=6, label="without interruption")
begin = 0
for number, part in enumerate(parts, start=1):
    end = part.n_iter_
    axis.plot(epochs[begin:end], part.loss_curve_[begin:end], "o-", label=f"run {number}")
    begin = end
axis.set(xlabel="epoch", ylabel="training objective")
axis.grid(alpha=0.3)
axis.legend()
plt.show()

# %%
# Equal bits need as many ranks and the same rows. On another number of ranks the fit goes on
# from the weighted mean, and ends near this model, not at it. A job that is killed loses what
# it did since its last checkpoint, at most ``every_s`` seconds and a round.
