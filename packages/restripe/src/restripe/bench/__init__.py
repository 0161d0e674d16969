"""How long a move takes beside the same sends and receives issued by hand.

`rows` says what is moved, `case` holds the tensors and the truth, `contenders` are the ways to move them: restripe's, and the one
by hand (`raw`), whose `pieces` go over `wires`. `crossing` counts what goes from rank to rank. `clock` times `calls`, `ranks` plays the
rows on one rank, `world` starts a process for each, `results` and `table` tell what came out. The repository's benchmarks/ adds
more contenders.
"""
