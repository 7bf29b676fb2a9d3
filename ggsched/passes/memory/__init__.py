"""Memory: when values live, which may share bytes, and where each lies."""
