"""Analysis of plans without moving anything: who sends what to whom, how evenly, and how long it should take.

`spelling` reads layouts as people write them. `traffic` plans a move on all its ranks and checks that the plans fit together;
`coverage` checks that every element is written once. `models` and `mapping` name the moves of whole models. `cost` predicts
times, `totals` adds up, and `simulation` does all of this for a model. `explanation`, `summary` and `drawing` show the results.
No module that moves tensors imports this package.
"""
