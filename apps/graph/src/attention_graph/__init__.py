"""Graph regression by Graphormer with every attention mechanism."""
