"""The only place that opens files to read them; ``tests/meta/test_files.py`` forbids others."""
