"""The commands of `allpass`, a file each."""
