"""Time restripe itself: `transfers` its calls on this host, `planning` one rank's plan in worlds of any size.

The repository's benchmarks/ hold the same calls against hand-written NCCL and other libraries.
"""
