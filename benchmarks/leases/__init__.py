"""TaskLeases against stock workers: their cost, and the losses when workers are killed."""
