"""Speech recognition with every attention mechanism."""
