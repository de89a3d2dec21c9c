"""A callback that ends the hopeless trials of Optuna."""

import optuna

from dsgd.progress import ProgressEvent


class Pruning:
    """Reports each epoch of a fit to a trial; what it raises ends the fit on all ranks."""

    def __init__(self, trial):
        self.trial, self.epoch = trial, 0

    def on_begin(self, estimator):
        """Nothing to prepare."""

    def on_event(self, estimator, event):
        """Report epochs, also those between two events: pruners compare trials at the same ones."""
        if isinstance(event, ProgressEvent):
            for epoch in range(self.epoch + 1, event.epoch + 1):
                self.trial.report(event.validation_score, epoch)
            self.epoch = max(self.epoch, event.epoch)
            if self.trial.should_prune():
                raise optuna.TrialPruned

    def on_end(self, estimator, error):
        """Nothing to close."""
