"""The machine room: the verbs of `stoker engine`, and what lies behind them."""
