"""Networks of our own, one file each."""
