"""What the command line and the dashboard share: which Redis is meant, which entries are, and what to do with them."""
