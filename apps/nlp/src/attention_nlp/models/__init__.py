"""Networks: those of transformers with attention slots, Crammed BERT, and their checkpoints."""
