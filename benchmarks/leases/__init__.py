"""TaskLeases against stock workers: what they cost, and what is lost when workers are killed."""
