"""Token routers, which choose experts for the hidden states of one layer."""
