"""What the reports of workers cost: CPU, commands, and bytes."""
