"""The dialogue gym: dialogues about facts, with faithful, copied and hallucinated responses.

`facts` reads the packages, `attributes` has the sentences, `draws` makes the dialogues, `claims`
decides what an answer says and whether its knowledge supports it. `metrics` and `questions` are
custom parts of the project's metrics.
"""
