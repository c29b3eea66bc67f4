"""Meta-learning over tasks: first-order MAML and Reptile."""
