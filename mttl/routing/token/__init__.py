"""Token routers: each reads the hidden states of one layer and chooses experts by token."""
