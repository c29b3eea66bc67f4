"""Language models that skills are put on."""
