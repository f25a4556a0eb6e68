"""The tables of the papers: printed values, cells, results beside them, and pages."""
