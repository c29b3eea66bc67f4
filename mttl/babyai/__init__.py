"""The world of BabyAI: policies of many levels, trained by rewards or from demonstrations."""
