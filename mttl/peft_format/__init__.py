"""Skills in the file formats of PEFT, and back."""
