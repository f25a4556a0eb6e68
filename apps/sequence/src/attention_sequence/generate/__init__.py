"""Data sets that are drawn rather than collected: ListOps and Pathfinder32 of Long Range Arena."""
