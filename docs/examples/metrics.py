"""A callback that hands each epoch to an experiment tracker."""

from dsgd.progress import ProgressEvent

NAMES = ("train_loss", "validation_score", "seconds", "rows_per_s", "comm_share")


class Metrics:
    """Calls ``log(metrics, step=epoch)``."""

    def __init__(self, log):
        self.log = log

    def on_begin(self, estimator):
        """Nothing to prepare."""

    def on_event(self, estimator, event):
        """Log an epoch; other events are notices."""
        if isinstance(event, ProgressEvent):
            found = {name: getattr(event, name) for name in NAMES}
            self.log({name: value for name, value in found.items() if value is not None}, step=event.epoch)

    def on_end(self, estimator, error):
        """Nothing to close."""
