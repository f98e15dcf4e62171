"""Nouns: frozen pydantic models without time estimates."""
