"""Boards on which runs are compared, beside metrics.csv: TensorBoard, and Weights & Biases."""
