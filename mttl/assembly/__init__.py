"""Build models from configurations, and plan their memory."""
