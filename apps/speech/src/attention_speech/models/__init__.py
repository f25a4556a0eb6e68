"""The networks: a speech recognizer, and a language model for its beam search."""
