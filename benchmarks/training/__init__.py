"""Estimators and kernels: speed, accuracy, and the effect of each strategy on training."""
