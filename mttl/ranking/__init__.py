"""RANKING: answers chosen among given ones, by how likely a model finds each."""
