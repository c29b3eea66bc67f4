"""Parts of the drill that kills commands."""
