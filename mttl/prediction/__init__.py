"""PREDICTION: answers of a trained model to texts, in the form in which it was trained."""
