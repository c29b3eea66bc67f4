"""Experiment loggers next to metrics.csv: TensorBoard, and Weights & Biases."""
