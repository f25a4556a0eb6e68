"""A static page per table: the numbers, and figures of the runs behind them."""
