"""LIBRARY: skills that were trained apart, as members of one folder."""
