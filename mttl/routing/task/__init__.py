"""Task routers, which mix the skills of a whole model by task ids or prompts."""
