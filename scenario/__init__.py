"""Plain data that everyone may import: shapes, actions, scenarios, events, violations.

Standard library only, so that a scenario can be read, written and reasoned about where there is
no vLLM, no torch and no Hypothesis.
"""
