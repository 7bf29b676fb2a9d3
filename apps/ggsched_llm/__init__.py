"""Models: GGUF files, their tokenizers, and the graphs of the architectures that are known."""
