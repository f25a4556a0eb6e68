"""Models to diagnose, their inputs, and the page of a diagnosis."""
