"""Training: the base module, schedules, callbacks, and patches of Lightning."""
