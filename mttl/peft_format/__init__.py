"""Conversion of skills to the file formats of PEFT and AdapterHub, and back."""
