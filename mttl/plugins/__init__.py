"""Plug-ins: custom classes named in settings, imported only if trusted."""
