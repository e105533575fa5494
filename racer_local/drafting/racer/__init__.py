"""The paper's method: retrieval automaton and Copy-Logit rows, merged into one tree. Pure."""
