"""Groups: what restripe remembers for each process group."""
