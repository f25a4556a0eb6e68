"""What every experiment shares: command line, runs, callbacks, tables, reports."""
