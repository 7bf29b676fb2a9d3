"""Nouns: the frozen artifacts that passes make and everybody else reads."""
