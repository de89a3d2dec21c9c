"""What ranks say in fewer bytes: one file per compressor."""

from dsgd.compress.base import AbstractCompressor, AbstractMemory, NoMemory
from dsgd.compress.feedback import ErrorFeedback
from dsgd.compress.identity import Identity

__all__ = ["AbstractCompressor", "AbstractMemory", "ErrorFeedback", "Identity", "NoMemory"]
