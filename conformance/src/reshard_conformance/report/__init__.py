"""Report files, console output, and the versions that both name."""
