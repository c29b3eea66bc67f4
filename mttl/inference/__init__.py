"""Answers of a trained model: generated, or chosen among options by their likelihood."""
