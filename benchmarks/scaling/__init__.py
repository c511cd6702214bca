"""What many waiting entries take: measured, reckoned from it, and simulated."""
