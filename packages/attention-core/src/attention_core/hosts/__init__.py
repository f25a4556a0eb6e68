"""One adapter a library: the only place that knows a host."""
