"""LIBRARY: collections of separately trained skills in one folder."""
