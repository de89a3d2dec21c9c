"""Callbacks that hand the progress of a fit to other tools: experiment trackers, and Optuna to stop hopeless trials."""

from dsgd.callbacks.mlflow import MLflowCallback
from dsgd.callbacks.optuna import OptunaPruning
from dsgd.callbacks.tensorboard import TensorBoardCallback
from dsgd.callbacks.tracker import AbstractTracker
from dsgd.callbacks.wandb import WandbCallback

__all__ = ["AbstractTracker", "MLflowCallback", "OptunaPruning", "TensorBoardCallback", "WandbCallback"]
