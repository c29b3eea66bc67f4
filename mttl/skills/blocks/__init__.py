"""Small feed-forward networks: adapters parallel to or after a block, ladders, and experts."""
