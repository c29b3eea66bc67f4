"""Task routers: each reads task ids and mixes the skills of a whole model."""
