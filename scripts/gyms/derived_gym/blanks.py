"""Texts of CLDR without characters that nobody sees."""

import unicodedata

# Blanks that do not break lines are ordinary ones to a reader; marks of direction are nothing.
_PLAIN = {0x00A0: " ", 0x202F: " ", 0x200E: None, 0x200F: None, 0x061C: None}


def plain(text: str) -> str:
    """Return a text with ordinary blanks, without marks of direction, its accents composed."""
    return unicodedata.normalize("NFC", text).translate(_PLAIN).strip()
