"""Planning at scale and balance: targets 4 and 6, without a GPU."""
