"""Sparse fine-tuning of any model: training, files and composition of sparse skills."""
