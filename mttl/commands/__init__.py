"""Commands of ``mttl``, one module each."""
