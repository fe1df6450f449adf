"""The contract as data, the checks, and the exploration that provokes them."""
