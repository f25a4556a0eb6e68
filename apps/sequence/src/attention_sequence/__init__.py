"""Time series and long sequences with every attention mechanism."""
