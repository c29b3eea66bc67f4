"""Scores of answers: CrossFit's seven metrics."""
