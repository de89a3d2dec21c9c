"""Progress of a running fit: events, callbacks, and a live line that shows them."""

from dsgd.progress.events import Audience, Callback, Notice, ProgressEvent, ProgressLine, StopTraining, read_event

__all__ = ["Audience", "Callback", "Notice", "ProgressEvent", "ProgressLine", "StopTraining", "read_event"]
