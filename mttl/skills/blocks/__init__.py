"""Small feed-forward networks: adapters beside or behind a part of the backbone, and experts."""
