"""Talking to llama-server: one protocol, several readouts.

`client` speaks HTTP over a verified connection, `facts` learns what never changes while a server lives (labels,
template skeleton, abilities), `stock` evaluates a prompt on any llama-server. Nothing here starts or stops one.
"""
