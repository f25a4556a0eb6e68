"""Language: GLUE, causal language modelling, code and pre-training with every mechanism."""
