"""Scores of answers: CrossFit's seven metrics, and the answers that need no model."""
