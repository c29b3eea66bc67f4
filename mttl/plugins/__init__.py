"""Custom classes: found by the name in a setting, imported only if trusted."""
