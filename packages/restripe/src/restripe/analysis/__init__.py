"""What a plan does, without moving anything: who sends what to whom, how evenly, and how long it should take.

`spelling` reads layouts as people write them; `traffic` plans a move on all its ranks and holds the plans against each other,
`coverage` that every element comes once; `models` and `mapping` name the moves of whole models; `cost` predicts times, `totals`
adds up, `simulation` does it all for a model. `explanation`, `summary` and `drawing` show it. Nothing here is needed to move tensors.
"""
