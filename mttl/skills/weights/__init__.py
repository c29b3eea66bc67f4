"""Skills that change a linear layer: what one computes, kind by kind."""
