"""Progress of a running fit: events, callbacks, and a live line that shows them."""

from dsgd.progress.callback import Audience, Callback, StopTraining
from dsgd.progress.event import Notice, ProgressEvent, read_event
from dsgd.progress.line import ProgressLine

__all__ = ["Audience", "Callback", "Notice", "ProgressEvent", "ProgressLine", "StopTraining", "read_event"]
