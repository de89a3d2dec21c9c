"""Estimators and kernels: speed, accuracy, and what each way of talking brings to a training."""
