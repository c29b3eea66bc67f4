"""BabyAI: policies for many levels, trained by rewards or from demonstrations."""
